"""Proportional attention: softmax(q kᵀ / √d + log size) v, in which a token of size s counts as s equal ones.

B batch, H heads, N tokens, D channels of a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SizedAttention(nn.Module):
    """Attention to tokens that stand for several: a module, so that a faster one can take its place.

    >>> import torch
    >>> q = torch.randn(2, 3, 5, 8)
    >>> SizedAttention()(q, q, q, torch.ones(2, 5)).shape
    torch.Size([2, 3, 5, 8])
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, size: Tensor | None, dropout: float = 0.0) -> Tensor:
        """q, k, v (B, H, N, D) and sizes (B, N), or None where every token stands for itself → (B, H, N, D)."""
        bias = None if size is None else size.log()[:, None, None].to(q.dtype)  # (B, 1, 1, N)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        # an exporter may lay y out otherwise than torch does here: heads joined by a view would then not fit
        return y.clone(memory_format=torch.contiguous_format) if torch.compiler.is_exporting() else y
