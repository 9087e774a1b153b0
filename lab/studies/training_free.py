"""What a trained ViT loses without any training: token reduction at many places, token merging beside it, dtypes.

    MACs of a rate   those of EViT at the paper's places, with the fused token
    everything else  EViT in every block of the last three quarters, token merging: set to the same MACs
    removed          as many tokens dropped at random, or the attentive ones instead of the inattentive

Every candidate is the same weights run in another way, so a row costs one pass over the images.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanformer.core import Block, Method, apply, blocks_of
from leanformer.measure import read_results
from leanformer.methods import EViT, ToMe
from leanformer.methods.evit import Choose, Reorganise, kept_count

RATES = (0.9, 0.8, 0.7, 0.6, 0.5)
FINE = tuple(thousandth / 1000 for thousandth in range(1000, 699, -1))
"""Rates from 1 down, for blocks that reduce one after the other."""
DTYPES = (torch.bfloat16, torch.float16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One row: which line of the figure it is on, what it is called, how it is made from the trained model."""

    family: str
    model: str
    make: Callable[[nn.Module], nn.Module]


def training_free(model: nn.Module) -> list[Candidate]:
    """All candidates for a trained ViT of at least eight blocks; the first is the model itself.

    >>> import leanformer as lf
    >>> vit = lf.create("vit", img_size=32, patch_size=4, embed_dim=32, depth=8, num_heads=2, num_classes=5)
    >>> training_free(vit)[1].model
    'EViT 0.9 at 2,4,6'
    """
    paper, *others = reducing_blocks(len(blocks_of(model)))
    dtypes = [_cast(dtype) for dtype in DTYPES]
    reduced = [candidate for at in others for candidate in _at(at)]
    return [
        Candidate(family="backbone", model="float32", make=_itself),
        *_at(paper),
        *_matched(model),
        *dtypes,
        *reduced,
        *(_removed(kind, rate, paper) for kind in ORDERS for rate in RATES),
    ]


def reducing_blocks(depth: int) -> list[tuple[int, ...]]:
    """The sets of blocks in which tokens are reduced: the paper's quarters; early, one block sooner and later; late.

    >>> reducing_blocks(12)
    [(3, 6, 9), (1, 2, 3), (2, 5, 8), (4, 7, 10), (6, 8, 10)]
    """
    quarter = depth // 4
    paper = (quarter, 2 * quarter, 3 * quarter)
    shifted = [tuple(block + step for block in paper) for step in (-1, 1)]
    return [paper, (1, 2, 3), *shifted, (depth // 2, 2 * depth // 3, depth - 2)]


def course(left: Callable[[int, int], int], depth: int, patches: int) -> list[tuple[int, int]]:
    """Patches in the attention and in the MLP of each block, where `left(block, patches)` go on to the MLP.

    >>> course(lambda block, patches: patches - 2, depth=3, patches=16)
    [(16, 14), (14, 12), (12, 10)]
    """
    found = []
    for block in range(depth):
        found.append((patches, left(block, patches)))
        patches = found[-1][1]
    return found


def cost(patches: Sequence[tuple[int, int]], dim: int, hidden: int) -> int:
    """MACs of a ViT's blocks for so many patches in attention and MLP; what does not depend on them is left out.

    >>> cost([(196, 196)] * 12, 192, 768) / 1e9
    1.224589824
    """
    pairs = [(attention + 1, mlp + 1) for attention, mlp in patches]  # beside the class token
    return sum(4 * n * dim**2 + 2 * n**2 * dim + 2 * m * dim * hidden for n, m in pairs)


def exported(folder: Path, model: str, data: str) -> list[dict[str, Any]]:
    """Rows of the same model on the same images after export, from the result files in a folder.

    >>> exported(Path("no such folder"), "vit", "pack:photographs.npz")
    []
    """
    rows = {}
    for result in read_results(folder, "export"):
        if result["model"] == model and Path(result["data"] or "").name == Path(data).name:
            for row in result["rows"]:
                if row["file"] is not None and row["top1"] is not None:
                    accuracy = {"top1": row["top1"], "top5": row["top5"]}
                    rows[row["name"]] = {"family": "exported", "model": row["name"], **accuracy}
    return list(rows.values())


def drawn(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows for a figure of accuracy against MACs: those that save some, EViT's with the fused token.

    >>> [row["family"] for row in drawn([{"family": "dtype"}, {"family": "EViT at 3,6,9"}])]
    ['EViT at 3,6,9']
    """
    return [row for row in rows if row["family"] not in ("dtype", "exported") and "no fusion" not in row["family"]]


def _at(at: tuple[int, ...]) -> list[Candidate]:
    """EViT at these places at every rate, with the fused token and without."""
    return [_evit(rate, at, fused) for fused in (True, False) for rate in RATES]


def _matched(model: nn.Module) -> list[Candidate]:
    """At the MACs of each rate: EViT in every later block, merging in every block, merging at EViT's places."""
    blocks = list(blocks_of(model).values())
    depth, paper, grid = len(blocks), reducing_blocks(len(blocks))[0], blocks[0].grid
    assert grid is not None
    later, patches = tuple(range(paper[0], depth)), grid.tokens - grid.prefix
    found: list[Candidate] = []
    for rate in RATES:
        wanted = course(functools.partial(left_by_evit, rate, paper), depth, patches)
        steady = _closest(wanted, {r: functools.partial(left_by_evit, r, later) for r in FINE}, blocks[0], patches)
        pairs = _closest(
            wanted, {r: functools.partial(_left_by_merging, r) for r in range(patches // 4)}, blocks[0], patches
        )
        found += [
            _evit(steady, later, fused=True),
            _evit(steady, later, fused=False),
            _merging("merging in every block", f"{pairs} pairs", [pairs] * depth),
            _merging(f"merging at {_listed(paper)}", f"as EViT {rate}", [before - after for before, after in wanted]),
        ]
    return found


def left_by_evit(rate: float, at: Sequence[int], block: int, patches: int) -> int:
    """Patches, with the fused token among them, that EViT leaves of `patches` in a block.

    >>> left_by_evit(0.5, (3,), 3, 196), left_by_evit(0.5, (3,), 4, 99)
    (99, 99)
    """
    return min(kept_count(rate, patches) + 1, patches) if block in at else patches


def _left_by_merging(pairs: int, block: int, patches: int) -> int:
    return patches - min(pairs, patches // 2)


def _closest(
    wanted: list[tuple[int, int]], ways: dict[Any, Callable[[int, int], int]], block: Block, patches: int
) -> Any:
    """Of the ways to reduce, the one whose blocks cost most nearly what is wanted."""
    hidden: int = block.ffn.fn.fc1.out_features  # type: ignore[union-attr,assignment]
    target = cost(wanted, block.dim, hidden)
    return min(ways, key=lambda w: abs(cost(course(ways[w], len(wanted), patches), block.dim, hidden) - target))


def _evit(rate: float, at: tuple[int, ...], fused: bool) -> Candidate:
    method = EViT(keep_rate=rate, at=at, fuse_tokens=fused)
    where = f"at {_listed(at)}{'' if fused else ', no fusion'}"
    return Candidate(
        family=f"EViT {where}", model=f"EViT {rate:g} {where}", make=functools.partial(_applied, method=method)
    )


class RandomOrder(Choose):
    """Keeps tokens drawn at random, the same ones for the same scores."""

    def forward(self, score: Tensor, keep: int) -> Tensor:
        drawn = torch.rand(score.shape, generator=torch.Generator().manual_seed(score.shape[1])).to(score.device)
        return drawn.topk(keep, dim=1).indices  # (B, K)


class LowestFirst(Choose):
    """Keeps the tokens of the lowest scores."""

    def forward(self, score: Tensor, keep: int) -> Tensor:
        return super().forward(-score, keep)


ORDERS: dict[str, type[Choose]] = {"removed at random": RandomOrder, "attentive removed": LowestFirst}
"""EViT's Figure 1 in numbers: what is removed instead of the inattentive tokens."""


def _removed(kind: str, rate: float, at: tuple[int, ...]) -> Candidate:
    family = f"{kind} at {_listed(at)}"
    make = functools.partial(_reordered, kind=kind, method=EViT(keep_rate=rate, at=at, fuse_tokens=False))
    return Candidate(family=family, model=f"{family}, {rate:g} kept", make=make)


def _reordered(model: nn.Module, kind: str, method: EViT) -> nn.Module:
    new = apply(model, method)
    for block in blocks_of(new).values():
        if isinstance(block.mix, Reorganise):
            block.mix.decision = ORDERS[kind]()
    return new


def _merging(family: str, name: str, pairs: list[int]) -> Candidate:
    make = functools.partial(_applied, method=ToMe(merged=tuple(pairs)))
    return Candidate(family=family, model=f"{family}, {name}", make=make)


def _cast(dtype: torch.dtype) -> Candidate:
    name = str(dtype).removeprefix("torch.")
    return Candidate(family="dtype", model=name, make=functools.partial(_in_dtype, dtype=dtype))


def _itself(model: nn.Module) -> nn.Module:
    return model


def _applied(model: nn.Module, method: Method) -> nn.Module:
    return apply(model, method)


def _in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy whose weights and activations are all of one dtype, and that takes float32 images."""
    new = copy.deepcopy(model).to(dtype)
    new.register_forward_pre_hook(lambda _, given: (given[0].to(dtype),))
    return new


def _listed(at: Sequence[int]) -> str:
    """Neighbours in a row as a range.

    >>> _listed((3, 6, 9)), _listed((3, 4, 5, 6))
    ('3,6,9', '3-6')
    """
    row = len(at) > 3 and list(at) == list(range(at[0], at[-1] + 1))
    return f"{at[0]}-{at[-1]}" if row else ",".join(map(str, at))
