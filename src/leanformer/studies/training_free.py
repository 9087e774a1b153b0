"""What a trained ViT loses without any training: token reduction at many places, token merging beside it, dtypes.

    MACs of a rate   those of EViT at the paper's places, with the fused token
    everything else  EViT in every block of the last three quarters, token merging: set to the same MACs

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

from ..core import apply, blocks_of
from ..measure import count, read_results
from ..methods import EViT
from ..methods.evit import kept_count
from .token_merging import merge_tokens

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


class InDtype(nn.Module):
    """A model whose weights and activations are all of one dtype, behind float32 images.

    >>> InDtype(nn.Linear(2, 2), torch.bfloat16)(torch.zeros(1, 2)).dtype
    torch.bfloat16
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype):
        super().__init__()
        self.model, self.dtype = model.to(dtype), dtype

    def forward(self, x: Tensor) -> Any:
        return self.model(x.to(self.dtype))


def training_free(model: nn.Module) -> list[Candidate]:
    """All candidates for a trained ViT of at least eight blocks; the first is the model itself.

    >>> import leanformer as lf
    >>> vit = lf.create("vit", img_size=32, patch_size=4, embed_dim=32, depth=8, num_heads=2, num_classes=5)
    >>> training_free(vit)[1].model
    'EViT 0.9 at 2,4,6'
    """
    paper, *others = places(len(blocks_of(model)))
    dtypes = [_cast(dtype) for dtype in DTYPES]
    reduced = [candidate for at in others for candidate in _at(at)]
    return [
        Candidate(family="backbone", model="float32", make=_itself),
        *_at(paper),
        *_matched(model),
        *dtypes,
        *reduced,
    ]


def places(depth: int) -> list[tuple[int, ...]]:
    """Where tokens are reduced: the paper's quarters; early, one block sooner and later; late.

    >>> places(12)
    [(3, 6, 9), (1, 2, 3), (2, 5, 8), (4, 7, 10), (6, 8, 10)]
    """
    quarter = depth // 4
    paper = (quarter, 2 * quarter, 3 * quarter)
    shifted = [tuple(place + step for place in paper) for step in (-1, 1)]
    return [paper, (1, 2, 3), *shifted, (depth // 2, 2 * depth // 3, depth - 2)]


def same_macs(make: Callable[[Any], nn.Module], values: Sequence[Any], macs: int) -> Any:
    """The value, of values ordered by falling MACs, whose model comes closest to so many MACs.

    >>> import leanformer as lf
    >>> def width(mlp_ratio):
    ...     return lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, mlp_ratio=mlp_ratio)
    >>> same_macs(width, (4, 3, 2, 1), count(width(2)).macs)
    2
    """

    @functools.cache
    def too_many(index: int) -> int:
        return count(make(values[index])).macs - macs

    low, high = 0, len(values) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if too_many(middle) >= 0 else (low, middle)
    return values[min((low, high), key=lambda index: abs(too_many(index)))]


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


def _at(at: tuple[int, ...]) -> list[Candidate]:
    """EViT at these places at every rate, with the fused token and without."""
    return [_evit(rate, at, fused) for fused in (True, False) for rate in RATES]


def _matched(model: nn.Module) -> list[Candidate]:
    """At the MACs of each rate: EViT in every later block, merging in every block, merging at EViT's places."""
    depth, paper = len(blocks_of(model)), places(len(blocks_of(model)))[0]
    later = tuple(range(paper[0], depth))
    patches = next(iter(blocks_of(model).values())).grid.size  # type: ignore[union-attr]
    tokens = patches[0] * patches[1]
    found: list[Candidate] = []
    for rate in RATES:
        macs = count(apply(model, EViT(keep_rate=rate, at=paper))).macs
        steady = same_macs(lambda r: apply(model, EViT(keep_rate=r, at=later)), FINE, macs)
        pairs = same_macs(lambda r: merge_tokens(model, r), range(tokens // 4), macs)
        found += [
            _evit(steady, later, fused=True),
            _evit(steady, later, fused=False),
            _merging("merging in every block", f"{pairs} pairs", [pairs] * depth),
            _merging(f"merging at {_listed(paper)}", f"as EViT {rate}", _as_evit(rate, paper, depth, tokens)),
        ]
    return found


def _as_evit(rate: float, at: Sequence[int], depth: int, tokens: int) -> list[int]:
    """Pairs to merge in each block so that as many tokens are left as EViT with its fused token leaves."""
    pairs = [0] * depth
    for place in at:
        left = kept_count(rate, tokens) + 1
        pairs[place], tokens = tokens - left, left
    return pairs


def _evit(rate: float, at: tuple[int, ...], fused: bool) -> Candidate:
    method = EViT(keep_rate=rate, at=at, fuse_tokens=fused)
    where = f"at {_listed(at)}{'' if fused else ', no fusion'}"
    return Candidate(
        family=f"EViT {where}", model=f"EViT {rate:g} {where}", make=functools.partial(_applied, method=method)
    )


def _merging(family: str, name: str, pairs: list[int]) -> Candidate:
    return Candidate(family=family, model=f"{family}, {name}", make=functools.partial(merge_tokens, merged=pairs))


def _cast(dtype: torch.dtype) -> Candidate:
    name = str(dtype).removeprefix("torch.")
    return Candidate(family="dtype", model=name, make=functools.partial(_in_dtype, dtype=dtype))


def _itself(model: nn.Module) -> nn.Module:
    return model


def _applied(model: nn.Module, method: EViT) -> nn.Module:
    return apply(model, method)


def _in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    return InDtype(copy.deepcopy(model), dtype)


def _listed(at: Sequence[int]) -> str:
    """Neighbours in a row as a range.

    >>> _listed((3, 6, 9)), _listed((3, 4, 5, 6))
    ('3,6,9', '3-6')
    """
    row = len(at) > 3 and list(at) == list(range(at[0], at[-1] + 1))
    return f"{at[0]}-{at[-1]}" if row else ",".join(map(str, at))
