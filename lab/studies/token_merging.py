"""Token merging by bipartite soft matching (Bolya et al., ICLR 2023): a baseline for token reduction, no method.

    metric  k̄ = mean over heads of the keys                                   (B, N, D)
    match   patches alternate between sets S and T; each of S points to the most similar of T, by cosine of k̄
    merge   the r most similar pairs, to their mean weighted by size: how many patches a token stands for
    attend  softmax(q kᵀ / √d + log size) v                                    proportional attention

in every block or in some, between attention and MLP. Nothing is learnt. B batch, N tokens, P patches, C channels.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanformer.core import Branch, blocks_of
from leanformer.layers.attention import join_heads, project


def match(metric: Tensor, merged: int) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of the patches of S that stay (B, S − r), of those that merge (B, r), and their partners in T (B, r).

    >>> left, leaving, partner = match(torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.1, 1.0], [1.0, 0.5]]]), 1)
    >>> left.tolist(), leaving.tolist(), partner.tolist()
    ([[0]], [[1]], [[0]])
    """
    unit = F.normalize(metric.float(), dim=-1)  # (B, P, D)
    source, target = unit[:, ::2], unit[:, 1::2]  # (B, S, D), (B, T, D)
    best, partner = (source @ target.mT).max(dim=-1)  # (B, S)
    order = best.argsort(dim=-1, descending=True, stable=True)  # (B, S)
    leaving, left = order[:, :merged], order[:, merged:].sort(dim=-1).values
    return left, leaving, partner.gather(1, leaving)


def merge(x: Tensor, size: Tensor, metric: Tensor, merged: int) -> tuple[Tensor, Tensor]:
    """Patches (B, P, C) of sizes (B, P) → patches (B, P − r, C) and their sizes, the untouched of S before T.

    >>> patches, size = torch.tensor([[[1.0], [3.0], [9.0], [9.0]]]), torch.ones(1, 4)
    >>> merge(patches, size, torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.1, 1.0], [1.0, 0.5]]]), 1)
    (tensor([[[1.],
             [6.],
             [9.]]]), tensor([[1., 2., 1.]]))
    """
    left, leaving, partner = match(metric, merged)

    def joined(y: Tensor) -> Tensor:
        source, target = y[:, ::2], y[:, 1::2]  # (B, S, C), (B, T, C)
        gone = source.take_along_dim(leaving[..., None], 1)  # (B, r, C)
        target = target.scatter_add(1, partner[..., None].expand_as(gone), gone)
        return torch.cat([source.take_along_dim(left[..., None], 1), target], dim=1)  # (B, P - r, C)

    new = joined(size[..., None])  # (B, P - r, 1)
    return joined(x * size[..., None]) / new, new.squeeze(-1)


class Sizes:
    """How many patches each token stands for, handed from block to block within a forward pass; None: one each."""

    value: Tensor | None = None


class Merge(Branch):
    """An attention branch with proportional attention that merges so many pairs of patches afterwards."""

    def __init__(self, *, prefix: int, merged: int, sizes: Sizes, first: bool, **branch: Any):
        super().__init__(**branch)
        self.prefix, self.merged, self.sizes, self.first = prefix, merged, sizes, first

    def forward(self, x: Tensor) -> Tensor:
        size = None if self.first else self.sizes.value  # (B, N)
        z = self.norm(x)
        q, k, v = project(self.fn, z)  # type: ignore[arg-type]  # (B, H, N, D) each
        bias = None if size is None else size.log()[:, None, None].to(q.dtype)  # (B, 1, 1, N)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  # (B, H, N, D)
        x = self.skip(x) + self.scaled(join_heads(self.fn, z, y))  # type: ignore[arg-type]  # (B, N, C)
        if self.merged:
            p = self.prefix
            exact = torch.promote_types(x.dtype, torch.float32)  # sums of many tokens need the digits
            size = torch.ones(x.shape[:2], dtype=exact, device=x.device) if size is None else size
            pairs = min(self.merged, (x.shape[1] - p) // 2)
            patches, after = merge(x[:, p:].to(exact), size[:, p:], k.mean(1)[:, p:], pairs)
            x = torch.cat([x[:, :p], patches.to(x.dtype)], dim=1)  # (B, N - r, C)
            size = torch.cat([size[:, :p], after], dim=1)
        self.sizes.value = size
        return x


def merge_tokens(model: nn.Module, merged: int | Sequence[int]) -> nn.Module:
    """A copy of an adopted ViT that merges so many pairs in every block, or in each block its own number.

    Where fewer pairs are left, those: a block can merge half of its patches at most.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5)
    >>> merge_tokens(model, 4)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 5])
    """
    new, sizes = copy.deepcopy(model), Sizes()
    blocks = list(blocks_of(new).values())
    counts = [merged] * len(blocks) if isinstance(merged, int) else list(merged)
    for index, (block, count) in enumerate(zip(blocks, counts, strict=True)):
        if not isinstance(block.mix, Branch) or block.grid is None:
            raise ValueError(f"tokens can be merged in a ViT's own blocks alone, not in {type(model).__name__}")
        block.mix = Merge(
            **block.mix.parts(), prefix=block.grid.prefix, merged=count, sizes=sizes, first=index == 0
        ).train(model.training)
    return new
