"""SiT: slim the tokens softly between stages, and let the unslimmed model teach every token of every block.

    student   stage 1 ── TSM ── stage 2 ── TSM ── stage 3 ── TSM ── stage 4        floor(N · keep_ratio^k) tokens
                 │                │ RTSM            │ RTSM            │ RTSM       in training: back to N tokens
    teacher   its blocks          …                 …                 …            token by token, block by block

N patches. The token slimming modules (TSM) lie in the seam before a block; the reverse modules (RTSM) in the objective.
"""

import copy
import dataclasses
import itertools
from collections.abc import Collection, Mapping
from functools import partial
from math import floor
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import nn

from ...core import Block, Build, Choices, Grid, LocalRewrite, Method, blocks_of, patch_plane, select
from ...core.method import refuse_unordered
from ...core.reduce import moving
from ...fields import Above0, Amount, Count, Within
from .fast import REWRITES
from .recalibration import FeatureRecalibration, Recalibration
from .slimming import Axis, Size, SpatialPrior, TokenSlimming
from .static_slimming import PlaneSlimming, TokenMlpSlimming, convolution, halved, pooling

Operator = Literal["tsm", "pool", "conv", "token-mlp"]
Start = Literal["grid", "random"]
Ratio = Annotated[float, Within(0, 1, "(]")]
SPLIT = (9, 3, 2, 2)
"""Blocks per stage of SiT-S, which other depths follow in proportion."""
PRESETS: dict[str, tuple[int, ...]] = {
    "lvvit_plus_tiny": (1, 1, 1, 11),
    "lvvit_plus_xsmall": (1, 1, 1, 13),
    "lvvit_plus_small": (9, 3, 2, 2),
    "lvvit_plus_medium": (10, 4, 3, 3),
    "lvvit_plus_large": (10, 4, 3, 7),
}


def slimmed_counts(patches: int, keep_ratio: float | tuple[float, ...], slimmings: int) -> list[int]:
    """Patch tokens before any slimming and after each, never none.

    Args:
        patches: tokens before any slimming.
        keep_ratio: one ratio for all, floored from the first count as in the published models; or one for each
            slimming, of the tokens that come to it.
        slimmings: how many there are.

    >>> slimmed_counts(196, 0.5, 3), slimmed_counts(196, (0.7, 1.0, 0.5), 3)
    ([196, 98, 49, 24], [196, 137, 137, 68])
    """
    if isinstance(keep_ratio, tuple):
        return list(itertools.accumulate(_one_each(keep_ratio, slimmings), _left, initial=patches))
    return [_left(patches, keep_ratio**k) for k in range(slimmings + 1)]


def _left(tokens: int, ratio: float) -> int:
    return max(1, floor(tokens * ratio))


def _kept(share: float) -> float:
    """The ratio that stays where a share goes, rounded: 1 - 0.8 is less than 0.2, and flooring would take one more."""
    return round(1 - share, 6)


def _one_each(keep_ratio: float | tuple[float, ...], slimmings: int) -> tuple[float, ...]:
    """The ratio of each slimming, from one for all or one for each."""
    if not isinstance(keep_ratio, tuple):
        return (keep_ratio,) * slimmings
    if len(keep_ratio) != slimmings:
        raise ValueError(f"keep_ratio has {len(keep_ratio)} values; give one, or one for each of {slimmings} slimmings")
    return keep_ratio


def split(depth: int) -> tuple[int, ...]:
    """The blocks that begin a new stage in a model of that depth, in the proportions of SiT-S.

    >>> split(16), split(12), split(4)
    ((9, 12, 14), (7, 9, 10), (1, 2, 3))
    """
    begins = [round(depth * end / sum(SPLIT)) for end in itertools.accumulate(SPLIT[:-1])]
    latest = depth
    for k in reversed(range(len(begins))):
        latest = begins[k] = min(begins[k], latest - 1)
    return tuple(b for b in begins if b > 0) or (0,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiT(Method, name="sit"):
    """Self-slimmed learning (SiT, ECCV 2022).

    Slimming happens before the blocks `at` (counted from 0), or between `stages` given by their numbers of blocks; by
    default three times, as in SiT-S. `keep_ratio` is one ratio or one for each of these places. The static operators
    are the paper's Table 7, the other recalibrations its Table 8, whose baseline is `lambda_token=0`; the λ are its
    Tables 9 and 10.

    >>> import leanformer as lf
    >>> model = lf.apply(lf.create("deit_small_patch16_224"), lf.SiT(stages=(3, 3, 3, 3)))
    >>> model(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 1000])
    """

    acts_on: ClassVar = "tokens"
    reduces_in: ClassVar = "pre"

    keep_ratio: Ratio | tuple[Ratio, ...] = 0.5
    """Tokens after a slimming, of those before it; 1 leaves the model as it is there."""
    at: tuple[int, ...] | None = None
    stages: tuple[Count, ...] | None = None
    start: Start = "grid"
    """'grid' begins as soft pooling of the plane, through a learnable spatial prior, and the reverse modules as soft
    un-pooling: for trained backbones. 'random' is the paper's; it also accepts any tokens that other methods leave."""
    axis: Axis = "inputs"
    """What the softmax runs over: 'inputs' as in the released code, 'outputs' as in the paper's Eq. 2."""
    operator: Operator = "tsm"
    recalibration: Recalibration = "rtsm"
    lambda_token: Amount = 2.0
    lambda_logits: Amount = 2.0
    lambda_hard: Amount = 0.0
    """The paper's is 1, with a CNN as a second teacher called 'cnn' and a distillation token in the student."""
    tau: Above0 = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        ratios = self.keep_ratio if isinstance(self.keep_ratio, tuple) else (self.keep_ratio,)
        if self.operator in ("pool", "conv") and not set(ratios) <= {0.25, 1}:
            raise ValueError(
                f"keep_ratio is {self.keep_ratio}, but '{self.operator}' halves both sides of the plane: "
                "give keep_ratio=0.25"
            )
        if self.at is not None and self.stages is not None:
            raise ValueError("at and stages both say where to slim; give one of them")
        refuse_unordered("at", self.at)
        if self.stages == ():
            raise ValueError("stages is empty; give the number of blocks of each stage, e.g. (3, 3, 3, 3)")

    @classmethod
    def preset(cls, teacher: str, **options: Any) -> Self:
        """The stages of the published model whose teacher is called that.

        >>> SiT.preset("lvvit_plus_tiny").stages
        (1, 1, 1, 11)
        """
        if teacher not in PRESETS:
            raise ValueError(f"no published SiT has the teacher '{teacher}'; known: {', '.join(PRESETS)}")
        return cls(**{"stages": PRESETS[teacher], **options})

    def places(self, model: nn.Module) -> tuple[int, ...]:
        """The blocks that a slimming comes before.

        >>> import leanformer as lf
        >>> SiT().places(lf.create("deit_tiny_patch16_224"))
        (7, 9, 10)
        """
        depth = len(blocks_of(model))
        if self.stages is None:
            return split(depth) if self.at is None else self.at
        if sum(self.stages) != depth:
            raise ValueError(f"stages {self.stages} have {sum(self.stages)} blocks, this model has {depth}")
        return tuple(itertools.accumulate(self.stages[:-1]))

    def swaps(self, model: nn.Module) -> dict[str, Build]:
        places = self.places(model)
        chosen = select(model, "pre", places)
        _refuse_fixed_tokens(model, after=min(places, default=0))
        ratios, counts, plane = _one_each(self.keep_ratio, len(places)), self.counts(model), _plane(model)
        slimming = [each for each in zip(chosen.items(), ratios, itertools.pairwise(counts)) if each[1] != 1]
        return {
            path: partial(self._build, block=block, plane=plane, inputs=inputs, tokens=tokens, index=k)
            for k, ((path, block), _, (inputs, tokens)) in enumerate(slimming)
        }

    def counts(self, model: nn.Module) -> list[int]:
        """Patch tokens before any slimming and after each, for images of the model's own size."""
        plane, times = _plane(model), len(self.places(model))
        if self.operator in ("pool", "conv"):
            halves = (ratio != 1 for ratio in _one_each(self.keep_ratio, times))
            planes = [halved(plane, k) for k in itertools.accumulate(halves, initial=0)]
            return [height * width for height, width in planes]
        return slimmed_counts(plane[0] * plane[1], self.keep_ratio, times)

    @classmethod
    def rewrites(cls) -> tuple[LocalRewrite, ...]:
        return REWRITES

    def off(self) -> Self:
        return self.replace(keep_ratio=1.0)

    @classmethod
    def choices(cls, model: nn.Module) -> Choices | None:
        blocks = tuple(range(1, len(blocks_of(model))))  # before the first block no token has looked at any other
        return Choices(blocks, most=0.75, trained=True) if blocks and cls(at=blocks).serves(model) else None

    @classmethod
    def with_shares(cls, shares: Mapping[int, float]) -> Self:
        return cls(at=tuple(sorted(shares)), keep_ratio=tuple(_kept(shares[block]) for block in sorted(shares)))

    @classmethod
    def tokens_left(cls, share: float, tokens: int) -> int:
        return _left(tokens, _kept(share))

    def objective(self, student: nn.Module, teacher: nn.Module | None) -> FeatureRecalibration | None:
        """Feature recalibration distillation from the teacher; without one, the labels are all there is to learn."""
        if teacher is None:
            return None
        if self.lambda_token:
            _refuse_other_reductions(student, own=select(student, "pre", self.places(student)))
        places, counts, depth = self.places(student), self.counts(student), len(blocks_of(student))
        seen = [min(i + 1, depth - 1) for i in range(depth)]  # a block's tokens are those that the next one sees
        return FeatureRecalibration(
            student,
            teacher,
            tokens=[counts[sum(place <= block for place in places)] for block in seen],
            recalibration=self.recalibration,
            lambda_token=self.lambda_token,
            lambda_logits=self.lambda_logits,
            lambda_hard=self.lambda_hard,
            tau=self.tau,
            start=self.start,
        )

    def _build(self, old: nn.Module, block: Block, plane: Size, inputs: int, tokens: int, index: int) -> nn.Module:
        grid = block.grid
        assert grid is not None
        spatial = self.start == "grid"
        if self.operator == "pool":
            return PlaneSlimming(pooling(), grid, plane, before=index)
        if self.operator == "conv":
            return PlaneSlimming(convolution(block.dim, self.start), grid, plane, before=index)
        if self.operator == "token-mlp":
            return TokenMlpSlimming(inputs, tokens, grid.prefix, plane if spatial else None, first=index == 0)
        prior = SpatialPrior(inputs, tokens, plane, None if index else grid) if spatial else None
        return TokenSlimming(block.dim, tokens, grid.prefix, self.axis, prior)


def _grid(model: nn.Module) -> Grid:
    """The grid of a model whose blocks are all one sequence of patches; others are refused."""
    blocks = blocks_of(model)
    for path, block in blocks.items():
        if block.layout != "NLC" or block.grid is None or block.stage or 0 in block.grid.size:
            raise ValueError(
                f"SiT slims sequences of tokens, and {path} of {type(model).__name__} works on maps or windows; "
                "it serves ViT, DeiT, LV-ViT and the like"
            )
    grid = next(iter(blocks.values())).grid
    assert grid is not None
    return grid


def _plane(model: nn.Module) -> Size:
    """The plane of patches at the model's own image size; its grid tells that of the images seen last."""
    grid = _grid(model)
    return patch_plane(model) or grid.size


def _refuse_other_reductions(student: nn.Module, own: Collection[str]) -> None:
    """Refuse to teach token by token where other slots than the method's own change which tokens there are."""
    other = next((path for path in moving(student) if path not in own), None)
    if other is not None:
        raise ValueError(
            f"SiT brings slimmed tokens back to all patches to teach each of them, which it cannot where {other} "
            f"({type(student.get_submodule(other)).__name__}) drops, merges or mixes tokens as well; "
            "learn from logits alone with lambda_token=0, or leave one of both out"
        )


def _refuse_fixed_tokens(model: nn.Module, after: int) -> None:
    """Refuse token mixers behind a slimming that take one number of tokens only, by trying another without data."""
    grid = _grid(model)
    for path, block in list(blocks_of(model).items())[after:]:
        parameter = next(block.mix.parameters(), None)
        if parameter is None:
            continue
        tensors = [*block.mix.parameters(), *block.mix.buffers()]
        twin = copy.deepcopy(block.mix, {id(t): torch.empty_like(t, device="meta") for t in tensors}).eval()
        x = torch.empty(1, grid.tokens + 1, block.dim, device="meta", dtype=parameter.dtype)
        try:
            twin(x)
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"SiT changes the number of tokens, but {path}.mix of {type(model).__name__} takes one number only"
            ) from error
