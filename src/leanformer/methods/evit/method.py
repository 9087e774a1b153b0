"""EViT: keep the patches that the class token attends to, fuse the rest into one token.

    x' = x + attention(x)                     (B, 1 + P, C)
    a  = mean over heads of softmax(q_cls kᵀ / √d), without the class token's own column      (B, P)
    x' → [cls | K patches of the highest a | Σ a_i x'_i over the others],  K = ceil(keep_rate · P)

in a few blocks, between attention and MLP. B batch, P tokens behind the prefix (an earlier fused token counts among
them), K kept, C channels. Neither a nor the sum is renormalised. No parameter is added.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import torch.nn.functional as F
from timm.layers import Attention
from torch import Tensor, nn

from ...core import Block, Branch, Build, Choices, LocalRewrite, Method, blocks_of, select
from ...core.method import refuse_unordered
from ...fields import Amount, Count, Within
from ...layers.attention import attend
from .fast import REWRITES
from .reorganise import Choose, reorganise

Rate = Annotated[float, Within(0, 1, "(]")]


def kept_count(keep_rate: float, tokens: int) -> int:
    """How many of the tokens stay.

    >>> kept_count(0.7, 196), kept_count(0.55, 100)
    (138, 56)
    """
    return math.ceil(keep_rate * tokens)


def keep_rate_at(epoch: float, target: float, start_epoch: float, shrink_epochs: float) -> float:
    """The keep rate at a moment of training: 1 until `start_epoch`, then down to the target along a cosine.

    >>> [round(keep_rate_at(e, 0.7, 10, 100), 4) for e in (0, 10, 60, 110)]
    [1.0, 1.0, 0.85, 0.7]
    """
    if epoch < start_epoch:
        return 1.0
    if epoch >= start_epoch + shrink_epochs:
        return target
    progress = (epoch - start_epoch) / shrink_epochs
    return target + (1 - target) * (1 + math.cos(math.pi * progress)) / 2


class Reorganise(Branch):
    """An attention branch that lets only the attentive tokens through; the rest leave as one fused token.

    >>> import torch
    >>> branch = Branch(nn.LayerNorm(8), Attention(8, num_heads=2))
    >>> Reorganise(**branch.parts(), prefix=1, keep_rate=0.5)(torch.randn(2, 11, 8)).shape
    torch.Size([2, 7, 8])
    """

    leaves_grid: bool | str = True

    def __init__(
        self,
        *,
        prefix: int,
        keep_rate: float = 1.0,
        tokens: int | None = None,
        fuse_tokens: bool = True,
        score: str = "class",
        **branch: Any,
    ):
        super().__init__(**branch)
        self.prefix = prefix
        self.keep_rate = keep_rate
        self.tokens = tokens
        self.fuse_tokens = fuse_tokens
        self.score = score
        self.decision = Choose()

    def keep(self, tokens: int) -> int:
        """How many of `tokens` (without the prefix) stay."""
        if self.tokens is None:
            return kept_count(self.keep_rate, tokens)
        if self.tokens > tokens:
            raise ValueError(f"EViT is to keep {self.tokens} tokens where only {tokens} arrive; ask for fewer")
        return self.tokens

    def forward(self, x: Tensor, **mask: Any) -> Tensor:
        droppable = x.shape[1] - self.prefix
        keep = self.keep(droppable)
        if keep == droppable:
            return super().forward(x, **mask)
        if mask:
            raise ValueError("EViT removes tokens, so an attention mask over all of them fits no later block")
        y, received = attend(self.fn, self.norm(x), self.score)  # type: ignore[arg-type]
        x = self.skip(x) + self.scaled(y)  # (B, prefix + P, C)
        score = received[:, self.prefix :]  # (B, P)
        return reorganise(x, score, self.decision(score, keep), self.fuse_tokens)

    def provenance(self, decided: Tensor, tokens: int) -> Tensor:
        """The kept tokens' own rows, and a zero row for the fused token, which lies nowhere: (B, K [+ 1], P)."""
        kept = F.one_hot(decided, tokens)  # (B, K, P)
        return F.pad(kept, (0, 0, 0, int(self.fuse_tokens)))

    def extra_repr(self) -> str:
        kept = f"keep_rate={self.keep_rate:g}" if self.tokens is None else f"tokens={self.tokens}"
        return f"{kept}, fuse_tokens={self.fuse_tokens}, score={self.score}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EViT(Method, name="evit"):
    """Token reorganisation of EViT (ICLR 2022).

    `at` are blocks, counted from 0, in rising order; by default those after each quarter of the depth, as in the paper:
    3, 6, 9 of 12 and 4, 8, 12 of 16. `keep_rate` is one rate or one for each of them. `tokens` fixes the counts
    instead, with None where the rate should hold. Both may also be given with one entry for every block of the model.

    `score="class"` ranks by the class token's attention, as in the paper. `score="mean"` ranks by the mean attention
    that a token receives: our extension for models without a class token; it computes whole attention maps.

    In training the rate is 1 until `start_epoch` and then falls to `keep_rate` over `shrink_epochs`. Applied to a
    trained backbone this is the paper's training with an oracle; `EViT.finetune` holds the rate from the start. Scores
    are taken before attention dropout, which the published code takes after it; in evaluation that is the same.

    >>> import torch
    >>> import leanformer as lf
    >>> lean = lf.apply(lf.create("deit_tiny_patch16_224"), lf.EViT(keep_rate=0.7))
    >>> lean(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 1000])
    """

    acts_on: ClassVar = "tokens"

    runtime: ClassVar[frozenset[str]] = frozenset({"keep_rate", "tokens", "fuse_tokens"})

    keep_rate: Rate | tuple[Rate, ...] = 0.7
    at: tuple[int, ...] | None = None
    fuse_tokens: bool = True
    score: Literal["class", "mean"] = "class"
    tokens: tuple[Count | None, ...] | None = None
    start_epoch: Amount = 10
    shrink_epochs: Amount = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unordered("at", self.at)

    @classmethod
    def finetune(cls, **options: Any) -> Self:
        """For fine-tuning a trained backbone: the keep rate holds from the first step.

        >>> EViT.finetune(keep_rate=0.5).shrink_epochs
        0
        """
        return cls(**{"start_epoch": 0, "shrink_epochs": 0, **options})

    def swaps(self, model: nn.Module) -> dict[str, Build]:
        places = self.places(model)
        depth = len(blocks_of(model))
        rates = _spread("keep_rate", self.keep_rate, places, depth, absent=1)
        counts = _spread("tokens", self.tokens, places, depth, absent=None)
        plan: dict[str, Build] = {}
        for (path, block), rate, count in zip(select(model, "mix", places).items(), rates, counts, strict=True):
            prefix = _prefix(model, path, block, self.score)
            plan[path] = functools.partial(
                _rebuild, prefix=prefix, keep_rate=rate, tokens=count, fuse_tokens=self.fuse_tokens, score=self.score
            )
        return plan

    def places(self, model: nn.Module) -> tuple[int, ...]:
        """The blocks that reorganise, in order.

        >>> import leanformer as lf
        >>> EViT().places(lf.create("deit_tiny_patch16_224"))
        (3, 6, 9)
        """
        depth = len(blocks_of(model))
        if self.at is not None:
            return self.at
        return tuple(sorted({depth * quarter // 4 for quarter in (1, 2, 3)}))

    @classmethod
    def rewrites(cls) -> tuple[LocalRewrite, ...]:
        return REWRITES

    def off(self) -> Self:
        return self.replace(keep_rate=1.0, tokens=None)

    @classmethod
    def choices(cls, model: nn.Module) -> Choices | None:
        blocks = tuple(range(1, len(blocks_of(model))))  # before the first block no token has looked at any other
        return Choices(blocks, most=0.9) if blocks and cls(at=blocks).serves(model) else None

    @classmethod
    def with_shares(cls, shares: Mapping[int, float]) -> Self:
        rates = tuple(1 - shares[block] for block in sorted(shares))
        return cls.finetune(at=tuple(sorted(shares)), keep_rate=rates)

    @classmethod
    def tokens_left(cls, share: float, tokens: int) -> int:
        kept = kept_count(1 - share, tokens)
        return kept + (kept < tokens)  # the fused token counts among the next block's

    def advance(self, model: nn.Module, epoch: float) -> dict[str, float]:
        places = self.places(model)
        targets = _spread("keep_rate", self.keep_rate, places, len(blocks_of(model)), absent=1)
        rates = [keep_rate_at(epoch, target, self.start_epoch, self.shrink_epochs) for target in targets]
        for block, rate in zip(select(model, "mix", blocks=places).values(), rates, strict=True):
            block.mix.keep_rate = rate  # type: ignore[assignment]
        if len(set(targets)) == 1:
            return {"keep_rate": rates[0]}
        return {f"keep_rate.{place}": rate for place, rate in zip(places, rates, strict=True)}


def _rebuild(old: nn.Module, **options: Any) -> Reorganise:
    assert isinstance(old, Branch)
    return Reorganise(**old.parts(), **options).train(old.training)


def _prefix(model: nn.Module, path: str, block: Block, score: str) -> int:
    """How many tokens lead the sequence and stay; refuses where tokens cannot be ranked or removed."""
    name = type(model).__name__
    if block.layout != "NLC" or block.grid is None:
        raise ValueError(f"EViT cannot remove tokens from {name}: {path} works on a map or on windows of patches")
    branch = block.mix
    known = type(branch) in (Branch, Reorganise)
    if not known or type(branch.fn) is not Attention:
        found = type(branch.fn if known else branch).__name__
        raise ValueError(f"EViT ranks tokens by attention, and {path} of {name} is {found}, not timm's Attention")
    if score == "class" and getattr(model, "cls_token", None) is None:
        raise ValueError(f"{name} has no class token to rank patches by; score='mean' ranks by attention received")
    return block.grid.prefix


def _spread(name: str, given: Any, places: tuple[int, ...], depth: int, absent: Any) -> tuple[Any, ...]:
    """One value for each place, from one for all, one a place, or one a block with `absent` elsewhere."""
    if not isinstance(given, tuple):
        return (given,) * len(places)
    if len(given) == len(places):
        return given
    if len(given) != depth:
        raise ValueError(f"{name} has {len(given)} values; give one for each of the blocks {places}, or {depth}")
    idle = [block for block, value in enumerate(given) if block not in places and value != absent]
    if idle:
        raise ValueError(f"{name} names block {idle[0]}, where EViT was not applied; it was at {places}")
    return tuple(given[block] for block in places)
