"""Attention in which a token counts for as many as it stands for.

    y = softmax(q kᵀ / √d + log s) v

The library's fast kernels take no bias, and those that take one want it as a whole map. On a CPU the plain form runs.

B batch, H heads, N tokens, D channels of a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

HEAD_DIMS = (16, 32, 64, 128)
"""Channels of a head that the kernel takes."""


@torch.library.custom_op("leanformer::sized_attention", mutates_args=(), device_types="cpu")
def sized_attention(q: Tensor, k: Tensor, v: Tensor, size: Tensor) -> Tensor:
    """q, k, v (B, H, N, D) and the tokens' sizes (B, N) → y with its heads side by side (B, N, H, D).

    >>> sized_attention(*torch.randn(3, 4, 2, 10, 16), torch.ones(4, 10)).shape
    torch.Size([4, 10, 2, 16])
    """
    return sized_attention_reference(q, k, v, size)


@sized_attention.register_kernel("cuda")
def _(q, k, v, size):
    from .sized_attention_triton import launch

    return launch(q, k, v, size)


@sized_attention.register_fake
def _(q, k, v, size):
    batch, heads, tokens, dim = q.shape
    return q.new_empty(batch, tokens, heads, dim)


def sized_attention_reference(q: Tensor, k: Tensor, v: Tensor, size: Tensor) -> Tensor:
    """The same in plain torch."""
    bias = size.log()[:, None, None].to(q.dtype)  # (B, 1, 1, N)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).contiguous()  # (B, N, H, D)
