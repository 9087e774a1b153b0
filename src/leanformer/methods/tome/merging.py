"""Which patches merge, and merging them.

    match     patches alternate between S and T; each of S points to the most similar of T, by cosine of the metric
    rank      of i in S = #{j : best_j > best_i  or  best_j = best_i and j < i}
    merge     those of rank below r into their partners, to the mean weighted by size; the others of S, then all of T

Ranks by counting take a few hundred comparisons a patch, which compilers make in one pass; nothing is sorted.

B batch, N tokens, P of them patches, S and T the two halves of these, r merged pairs, C channels, H heads of D.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Match(nn.Module):
    """Whom each patch of S is most like, and in which order they would merge: a module, so that hooks can see it.

    >>> Match()(torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.1, 1.0], [1.0, 0.5]]]))
    tensor([[[1, 0],
             [1, 0]]])
    """

    def forward(self, keys: Tensor) -> Tensor:
        """Keys (B, H, P, D) or a metric (B, P, D) → (B, 2, S): of each of S how many merge before it, and its partner.

        The partner is given by its number in T.
        """
        best, partner = self.similarity(keys).max(dim=-1)  # (B, S)
        best = torch.where(best == best, best, -2.0)  # what is no number comes last
        places = torch.arange(best.shape[1], device=best.device)
        earlier = (best[:, None] == best[..., None]) & (places[None] < places[:, None])  # (B, S, S)
        rank = ((best[:, None] > best[..., None]) | earlier).sum(-1)  # (B, S)
        return torch.stack([rank, partner], dim=1)

    def similarity(self, keys: Tensor) -> Tensor:
        """The cosine of each patch of S with each of T, (B, S, T), by the mean of the keys over heads."""
        exact = keys.to(torch.promote_types(keys.dtype, torch.float32))  # cosines need the digits
        metric = exact.mean(1) if keys.ndim == 4 else exact  # (B, P, D)
        unit = F.normalize(metric, dim=-1)
        return unit[:, ::2] @ unit[:, 1::2].mT

    def margin(self, keys: Tensor) -> Tensor:
        """The least gap between two cosines of an image whose order matters, (B,): within a row, and of the rows."""
        cosines = self.similarity(keys)  # (B, S, T)
        best = cosines.topk(min(2, cosines.shape[2]), dim=-1).values
        within = (best[..., 0] - best[..., -1]).amin(1) if best.shape[-1] > 1 else best[:, 0, 0].abs()
        ordered = best[..., 0].sort(dim=1).values  # (B, S)
        between = ordered.diff(dim=1).amin(1) if ordered.shape[1] > 1 else within
        return torch.minimum(within, between)


def merge(x: Tensor, size: Tensor, decided: Tensor, merged: int, prefix: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens (B, N, C) of sizes (B, N) → tokens (B, N − r, C) and their sizes; the prefix stays in front.

    Args:
        x: the tokens.
        size: how many patches of the image each stands for.
        decided: what `Match` gave for the patches.
        merged: r, how many pairs become one token.
        prefix: how many tokens in front are no patches.

    >>> patches, size = torch.tensor([[[1.0], [3.0], [9.0], [9.0]]]), torch.ones(1, 4)
    >>> decided = Match()(torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.1, 1.0], [1.0, 0.5]]]))
    >>> merge(patches, size, decided, 1)
    (tensor([[[1.],
             [6.],
             [9.]]]), tensor([[1., 2., 1.]]))
    """
    rank, partner = decided.unbind(1)  # (B, S) each
    mine, theirs = x[:, prefix::2], x[:, prefix + 1 :: 2]  # (B, S, C), (B, T, C)
    mine_size, theirs_size = size[:, prefix::2], size[:, prefix + 1 :: 2]
    places = torch.arange(rank.shape[1], device=rank.device)
    left = torch.zeros_like(rank).scatter(1, rank, places.expand_as(rank))[:, merged:]  # (B, S − r), the likest first
    goes = (partner[:, None] == places[: theirs.shape[1], None]) & (rank < merged)[:, None]  # (B, T, S)
    gone = goes.to(size.dtype) * mine_size[:, None]  # (B, T, S)
    total = theirs_size + gone.sum(-1)  # (B, T)
    stays = (theirs_size / total)[..., None].to(x.dtype) * theirs  # (B, T, C)
    means = stays + (gone / total[..., None]).to(x.dtype) @ mine
    kept = mine.gather(1, left[..., None].expand(-1, -1, x.shape[2]))  # (B, S − r, C)
    return (
        torch.cat([x[:, :prefix], kept, means], dim=1),  # (B, N − r, C)
        torch.cat([size[:, :prefix], mine_size.gather(1, left), total], dim=1),  # (B, N − r)
    )
