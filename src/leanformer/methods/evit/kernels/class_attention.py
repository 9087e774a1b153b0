"""Attention that gives the class token's row of its map as well, from the same pass over queries and keys.

    y = softmax(q kᵀ / √d) v,    a = mean over heads of softmax(q₀ kᵀ / √d)

The normaliser of the first row is known once its queries have met all keys, so the row costs one more look at the keys
by the one program of each head that owns the first query. On a CPU the plain form runs.

B batch, H heads, N tokens, D channels of a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ....layers.attention import class_attention
from ....layers.kernels import operator

HEAD_DIMS = (16, 32, 64, 128)
"""Channels of a head that the kernel takes."""
MOST_TOKENS = 1024
FEW_TOKENS, FEW_IMAGES = 192, 8


def row_pays(batch: int, tokens: int) -> bool:
    """Whether one kernel beats the library's attention with the row apart, as measured on an H200.

    With many images the library wins at 197 tokens (114 against 135 µs for DeiT-S, batch 256) and loses at 140 (109
    against 76 µs); with few images launches decide, and one kernel wins (12 against 18 µs at batch 1).

    >>> row_pays(256, 197), row_pays(256, 140), row_pays(1, 197)
    (False, True, True)
    """
    return tokens <= FEW_TOKENS or (batch <= FEW_IMAGES and tokens <= MOST_TOKENS)


def _shapes(q, k, v):
    batch, heads, tokens, dim = q.shape
    exact = q.dtype if q.dtype == torch.float64 else torch.float32
    return q.new_empty(batch, tokens, heads, dim), q.new_empty(batch, tokens, dtype=exact)


@operator(f"{__package__}.class_attention_triton", _shapes)
def attention_with_class_row(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """q, k, v (B, H, N, D) → y with its heads side by side (B, N, H, D), and the class row (B, N).

    >>> y, row = attention_with_class_row(*torch.randn(3, 4, 2, 10, 16))
    >>> y.shape, row.shape
    (torch.Size([4, 10, 2, 16]), torch.Size([4, 10]))
    """
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()  # (B, N, H, D)
    return y, class_attention(q, k)
