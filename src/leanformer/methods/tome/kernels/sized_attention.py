"""Attention in which a token counts for as many as it stands for.

    y = softmax(q kᵀ / √d + log s) v

The library's fast kernels take no bias, and those that take one want it as a whole map. On a CPU the plain form runs.

B batch, H heads, N tokens, D channels of a head.
"""

import torch.nn.functional as F
from torch import Tensor

from ....layers.kernels import operator

HEAD_DIMS = (16, 32, 64, 128)
"""Channels of a head that the kernel takes."""


def _shapes(q, k, v, size):
    batch, heads, tokens, dim = q.shape
    return q.new_empty(batch, tokens, heads, dim)


@operator(f"{__package__}.sized_attention_triton", _shapes)
def sized_attention(q: Tensor, k: Tensor, v: Tensor, size: Tensor) -> Tensor:
    """q, k, v (B, H, N, D) and the tokens' sizes (B, N) → y with its heads side by side (B, N, H, D).

    >>> import torch
    >>> sized_attention(*torch.randn(3, 4, 2, 10, 16), torch.ones(4, 10)).shape
    torch.Size([4, 10, 2, 16])
    """
    bias = size.log()[:, None, None].to(q.dtype)  # (B, 1, 1, N)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).contiguous()  # (B, N, H, D)
