"""Token merging laid out for speed: sizes beside the tokens instead of among their channels, and a kernel each for
attention by size, for finding pairs, and for merging them with the residual sum and the next norm.
"""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from ...core import H200, Block, Branch, LocalRewrite
from ...layers.attention import without_autocast
from ...layers.norms import plain_layer_norm
from .attention import SizedAttention
from .kernels.match import match_keys, takes
from .kernels.merge import MOST_CHANNELS, merge_in_one_pass
from .kernels.sized_attention import HEAD_DIMS, sized_attention
from .merging import Match


@runtime_checkable
class HandsSizes(Protocol):
    """A token mixer that takes and gives sizes beside the tokens; behind the last one nobody asks for them."""

    last: bool

    def attended(self, x: Tensor, size: Tensor | None) -> tuple[Tensor, Tensor]: ...

    def with_sizes(self, x: Tensor, size: Tensor | None) -> tuple[Tensor, Tensor | None]: ...


class OneKernelAttention(SizedAttention):
    """Proportional attention by one kernel where its heads have a width that this takes.

    >>> import torch
    >>> q, size = torch.randn(2, 3, 5, 16), torch.full((2, 5), 2.0)
    >>> torch.allclose(OneKernelAttention()(q, q, q, size), SizedAttention()(q, q, q, size), atol=1e-5)
    True
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, size: Tensor | None, dropout: float = 0.0) -> Tensor:
        if size is None or dropout or q.shape[3] not in HEAD_DIMS:
            return super().forward(q, k, v, size, dropout)
        return sized_attention(q, k, v, size).transpose(1, 2)  # (B, H, N, D)


class MergingRun(nn.Module):
    """Blocks that merge, from the first one to the last: tokens and sizes go from block to block as two tensors.

    What comes in may have no sizes yet, and what goes out has none any more, as behind the last of the blocks.
    """

    def __init__(self, blocks: Any):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        size: Tensor | None = None
        for block in self.blocks:
            x, size = self.through(block, block.pre(x), size)  # type: ignore[union-attr, operator]
        return x

    def through(self, block: Any, x: Tensor, size: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Tokens and their sizes behind a block."""
        x, size = block.mix.with_sizes(x, size)
        return block.ffn(x), size


class OnePassMergingRun(MergingRun):
    """The same where residual sum, merging and the norm of the FFN are one pass."""

    def through(self, block: Any, x: Tensor, size: Tensor | None) -> tuple[Tensor, Tensor | None]:
        mix, ffn = block.mix, block.ffn
        pairs = mix.pairs(x.shape[1] - mix.prefix)
        if not pairs or x.shape[2] > MOST_CHANNELS:
            return super().through(block, x, size)
        y, k = mix.attended(x, size)  # (B, N, C), (B, H, N, D)
        normed = isinstance(ffn, Branch) and plain_layer_norm(ffn.norm)
        norm: Any = (ffn.norm.weight, ffn.norm.bias, ffn.norm.eps) if normed else (None, None, 0.0)
        with without_autocast(x):
            u, z, size = merge_in_one_pass(mix.skip(x), y, size, mix.decided(k), pairs, mix.prefix, *norm)
        return (ffn.skip(u) + ffn.scaled(ffn.fn(z)) if normed else ffn(u)), size


class MatchInOneKernel(Match):
    """The same from the keys of all heads at once, where the kernel takes as many patches and channels.

    >>> import torch
    >>> keys = torch.randn(2, 3, 10, 16)
    >>> torch.equal(MatchInOneKernel()(keys), Match()(keys))
    True
    """

    def forward(self, keys: Tensor) -> Tensor:
        return match_keys(keys) if takes(keys) else super().forward(keys)


def with_run(blocks: nn.Sequential) -> nn.Sequential:
    """The sequence with its merging blocks, which are the last ones, as one module."""
    first = _first_merging(blocks)
    return nn.Sequential(*blocks[:first], MergingRun(blocks[first:]))


def ends_merging(module: Any) -> bool:
    """Whether a module is a sequence of blocks of which those from some place to the end hand sizes along.

    >>> ends_merging(nn.Sequential(nn.Identity()))
    False
    """
    if type(module) is not nn.Sequential or not len(module) or not all(isinstance(b, Block) for b in module):
        return False
    first = _first_merging(module)
    tail: list[Any] = [block.mix for block in module[first:] if _hands_sizes(block)]
    return 0 < len(tail) == len(module) - first and tail[-1].last


def _first_merging(blocks: Any) -> int:
    return next((i for i, block in enumerate(blocks) if _hands_sizes(block)), len(blocks))


def _hands_sizes(block: Any) -> bool:
    plain = isinstance(block.pre, nn.Identity) and block.layout == "NLC"
    return plain and isinstance(block.mix, HandsSizes)


REWRITES = (
    LocalRewrite(
        "proportional attention in one kernel",
        lambda module: type(module) is SizedAttention,
        lambda old: OneKernelAttention(),
        measured_on=H200,
    ),
    LocalRewrite("merged tokens beside their sizes", ends_merging, with_run, measured_on=H200),
    LocalRewrite(
        "pairs found in one kernel",
        lambda module: type(module) is Match,
        lambda match: MatchInOneKernel(),
        measured_on=H200,
    ),
    LocalRewrite(
        "tokens merged in one pass",
        lambda module: type(module) is MergingRun,
        lambda run: OnePassMergingRun(run.blocks),
        measured_on=H200,
    ),
)
