"""ToMe: merge the patches that say nearly the same, and let a merged token count for all it stands for.

    metric    k̄ = mean over heads of the keys                                                    (B, P, D)
    match     patches alternate between S and T; each of S points to the most similar of T, by cosine of k̄
    merge     the r most similar pairs, to their mean weighted by size: how many patches a token stands for
    attend    softmax(q kᵀ / √d + log size) v                                       proportional attention

between attention and MLP of the blocks `at`. Nothing is learnt, so it serves with and without training. The sizes are
handed from block to block as one channel more than the block is wide (Bolya et al., ICLR 2023).

B batch, N tokens, P of them patches, S and T the two halves of these, r merged pairs, C channels, H heads of D.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import torch
from timm.layers import Attention
from torch import Tensor, nn

from ...core import Block, Branch, Build, Choices, LocalRewrite, Method, blocks_of, select
from ...core.method import refuse_unordered
from ...fields import Within
from ...layers.attention import join_heads, project, without_autocast
from .attention import SizedAttention
from .fast import REWRITES
from .merging import Match, merge

Pairs = Annotated[int, Within(0)]
Rate = Annotated[float, Within(0.5, 1)]


class Merge(Branch):
    """An attention branch with proportional attention that merges pairs of patches behind its residual.

    What comes in may have the tokens' sizes as one channel more than `dim`; what goes out has it unless this is the
    `last` block, whose sizes nobody asks for.

    >>> branch = Branch(nn.LayerNorm(8), Attention(8, num_heads=2))
    >>> Merge(**branch.parts(), dim=8, prefix=1, merged=2)(torch.randn(2, 11, 8)).shape
    torch.Size([2, 9, 9])
    """

    leaves_grid: bool | str = True

    def __init__(
        self,
        *,
        dim: int,
        prefix: int,
        merged: int | None = None,
        keep_rate: float = 1.0,
        last: bool = False,
        **branch: Any,
    ):
        super().__init__(**branch)
        self.dim, self.prefix, self.last = dim, prefix, last
        self.merged, self.keep_rate = merged, keep_rate
        self.attend = SizedAttention()
        self.decision = Match()

    @property
    def hands_on(self) -> bool:
        """Whether the next block is to take up the sizes."""
        return not self.last

    def pairs(self, patches: int) -> int:
        """How many pairs of so many patches become one: half of them at most.

        >>> Merge(norm=nn.Identity(), fn=nn.Identity(), dim=8, prefix=1, keep_rate=0.7).pairs(196)
        58
        """
        wanted = patches - math.ceil(self.keep_rate * patches) if self.merged is None else self.merged
        return min(wanted, patches // 2)

    def forward(self, x: Tensor, **mask: Any) -> Tensor:
        x, size = x[..., : self.dim], x[..., self.dim] if x.shape[-1] > self.dim else None  # (B, N, C), (B, N)
        pairs = self.pairs(x.shape[1] - self.prefix)
        if not pairs and size is None:
            return super().forward(x, **mask)
        if mask:
            raise ValueError("ToMe merges tokens, so an attention mask over all of them fits no later block")
        x, size = self.with_sizes(x, size)
        if self.last or size is None:
            return x
        return torch.cat([x, size[..., None].to(x.dtype)], dim=-1)  # (B, N − r, C + 1)

    def with_sizes(self, x: Tensor, size: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Tokens (B, N, C) and their sizes (B, N), None while all are 1 → tokens (B, N − r, C) and their sizes."""
        y, k = self.attended(x, size)
        x = self.skip(x) + y  # (B, N, C)
        pairs = self.pairs(x.shape[1] - self.prefix)
        return self.merged_tokens(x, size, k, pairs) if pairs else (x, size)

    def attended(self, x: Tensor, size: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the branch adds to its tokens, (B, N, C), and their keys, (B, H, N, D)."""
        z = self.norm(x)
        q, k, v = project(self.fn, z)  # type: ignore[arg-type]  # (B, H, N, D) each
        dropout = self.fn.attn_drop.p if self.training else 0.0  # type: ignore[union-attr, operator]
        y = self.attend(q, k, v, size, dropout)  # (B, H, N, D)
        return self.scaled(join_heads(self.fn, z, y)), k  # type: ignore[arg-type]

    def merged_tokens(self, x: Tensor, size: Tensor | None, k: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
        """Tokens (B, N, C) → (B, N − r, C) and their sizes (B, N − r), the prefix as it was."""
        exact = torch.promote_types(x.dtype, torch.float32)
        sizes = x.new_ones(x.shape[:2], dtype=exact) if size is None else size.to(exact)  # (B, N)
        with without_autocast(x):
            return merge(x, sizes, self.decided(k), pairs, self.prefix)

    def decided(self, k: Tensor) -> Tensor:
        """What `Match` makes of the keys (B, H, N, D) of the patches among the tokens."""
        return self.decision(k[:, :, self.prefix :].detach())

    def provenance(self, decided: Tensor, tokens: int) -> Tensor:
        """Ones over the tokens that became one: (B, P − r, P)."""
        each = torch.eye(tokens, device=decided.device).expand(len(decided), -1, -1)
        rows, sizes = merge(each, each.new_ones(len(decided), tokens), decided, self.pairs(tokens))
        return (rows * sizes[..., None]).round()

    def extra_repr(self) -> str:
        return f"keep_rate={self.keep_rate:g}" if self.merged is None else f"merged={self.merged}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToMe(Method, name="tome"):
    """Token merging (ToMe, ICLR 2023).

    `merged` pairs of patches become one in each of the blocks `at` (every block by default), or a number for each of
    these blocks; `keep_rate` gives the share of patches that stays instead, one for all or one a block. From the first
    of these blocks on, all attention is proportional to the tokens' sizes. Without either option 8 pairs merge in each
    block. At most half of the patches can merge in one block.

    >>> import leanformer as lf
    >>> lean = lf.apply(lf.create("deit_tiny_patch16_224"), lf.ToMe(merged=13))
    >>> lean(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 1000])
    """

    acts_on: ClassVar = "tokens"

    runtime: ClassVar[frozenset[str]] = frozenset({"merged", "keep_rate"})

    merged: Pairs | tuple[Pairs, ...] | None = None
    keep_rate: Rate | tuple[Rate, ...] | None = None
    at: tuple[int, ...] | None = None
    """Blocks, counted from 0, in rising order; None: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.merged is not None and self.keep_rate is not None:
            raise ValueError("merged and keep_rate both say how many tokens stay; give one of them")
        refuse_unordered("at", self.at)

    def swaps(self, model: nn.Module) -> dict[str, Build]:
        depth, places = len(blocks_of(model)), self.places(model)
        select(model, "mix", places)  # refuses blocks that are not there
        if not places:
            return {}
        pairs = _by_place("merged", 8 if self.merged is None and self.keep_rate is None else self.merged, places)
        rates = _by_place("keep_rate", self.keep_rate, places)
        plan: dict[str, Build] = {}
        behind = tuple(range(places[0], depth))
        for index, (path, block) in zip(behind, select(model, "mix", behind).items()):
            _refuse(model, path, block)
            assert block.grid is not None
            here: dict[str, Any] = {"merged": pairs.get(index), "keep_rate": rates.get(index) or 1.0}
            if index not in places:
                here = {"merged": 0, "keep_rate": 1.0}
            plan[path] = functools.partial(
                _rebuild, dim=block.dim, prefix=block.grid.prefix, last=index == depth - 1, **here
            )
        return plan

    def places(self, model: nn.Module) -> tuple[int, ...]:
        """The blocks that merge, in order.

        >>> import leanformer as lf
        >>> ToMe(at=(3, 6)).places(lf.create("deit_tiny_patch16_224"))
        (3, 6)
        """
        return tuple(range(len(blocks_of(model)))) if self.at is None else self.at

    @classmethod
    def rewrites(cls) -> tuple[LocalRewrite, ...]:
        return REWRITES

    def off(self) -> Self:
        return self.replace(merged=0, keep_rate=None)

    @classmethod
    def choices(cls, model: nn.Module) -> Choices | None:
        return Choices(tuple(range(len(blocks_of(model)))), most=0.5) if cls().serves(model) else None

    @classmethod
    def with_shares(cls, shares: Mapping[int, float]) -> Self:
        return cls(at=tuple(sorted(shares)), keep_rate=tuple(1 - shares[block] for block in sorted(shares)))

    @classmethod
    def tokens_left(cls, share: float, tokens: int) -> int:
        return tokens - min(tokens - math.ceil((1 - share) * tokens), tokens // 2)


def _rebuild(old: nn.Module, **options: Any) -> Merge:
    assert isinstance(old, Branch)
    return Merge(**old.parts(), **options).train(old.training)


def _refuse(model: nn.Module, path: str, block: Block) -> None:
    """Refuse blocks whose tokens cannot be merged, and say why."""
    name = type(model).__name__
    if block.layout != "NLC" or block.grid is None:
        raise ValueError(f"ToMe cannot merge tokens of {name}: {path} works on a map or on windows of patches")
    known = type(block.mix) in (Branch, Merge)
    if not known or type(block.mix.fn) is not Attention:
        found = type(block.mix.fn if known else block.mix).__name__
        raise ValueError(f"ToMe matches tokens by the keys of attention, and {path} of {name} is {found}")


def _by_place(name: str, given: Any, places: tuple[int, ...]) -> dict[int, Any]:
    """Place → its value, from one for all or one a place."""
    if not isinstance(given, tuple):
        return dict.fromkeys(places, given)
    if len(given) != len(places):
        raise ValueError(f"{name} has {len(given)} values; give one, or one for each of the {len(places)} blocks")
    return dict(zip(places, given))
