"""Token reorganisation: keep the highest-scored tokens, fuse the rest.

    [prefix | P tokens] → top K by score → [prefix | K tokens, highest score first | 1 fused]

B batch, P tokens that may go, K kept, C channels. Prefix tokens (class, distillation, registers) always stay.
"""

import torch
from torch import Tensor, nn


class Choose(nn.Module):
    """The indices of the `keep` highest scores, highest first: a module, so that hooks can see what was chosen.

    >>> Choose()(torch.tensor([[0.1, 0.7, 0.2]]), 2)
    tensor([[1, 2]])
    """

    def forward(self, score: Tensor, keep: int) -> Tensor:
        return score.topk(keep, dim=1).indices  # (B, K)

    def margin(self, score: Tensor, keep: int) -> Tensor:
        """How far the last kept score is above the next one, relative to it: (B,)."""
        if keep >= score.shape[1]:
            return torch.full_like(score[:, 0], float("inf"))
        top = score.float().topk(keep + 1, dim=1).values  # (B, K + 1)
        return (top[:, -2] - top[:, -1]) / top[:, -2].abs().clamp_min(1e-30)


def reorganise(x: Tensor, score: Tensor, chosen: Tensor, fuse: bool = True) -> Tensor:
    """Keep the chosen tokens; sum the others, weighted by their raw scores, into one at the end.

    x (B, prefix + P, C) and score (B, P), of which `chosen` (B, K) stay; (B, prefix + K + 1, C) comes out.

    >>> reorganise(torch.ones(1, 4, 2), torch.tensor([[0.5, 0.2, 0.1]]), torch.tensor([[0]]))[0, :, 0]
    tensor([1.0000, 1.0000, 0.3000])
    """
    prefix = x.shape[1] - score.shape[1]
    tokens = x[:, prefix:]  # (B, P, C)
    kept = tokens.gather(1, chosen[..., None].expand(-1, -1, x.shape[2]))  # (B, K, C)
    if not fuse:
        return torch.cat([x[:, :prefix], kept], dim=1)  # (B, prefix + K, C)
    rest = score.scatter(1, chosen, 0.0).to(x.dtype)  # (B, P), zero where kept
    return torch.cat([x[:, :prefix], kept, rest[:, None] @ tokens], dim=1)  # (B, prefix + K + 1, C)
