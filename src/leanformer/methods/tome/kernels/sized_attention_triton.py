# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""The kernel behind `sized_attention`: softmax by blocks of keys, each key's weight multiplied by its size.

B batch, H heads, N tokens, D channels of a head (a power of two).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....layers.kernels.attention_triton import LOG2_E, attended, grid_and_blocks, place, store_rows, with_unit_stride


def launch(q: Tensor, k: Tensor, v: Tensor, size: Tensor) -> Tensor:
    """q, k, v (B, H, N, D), each of unit stride along D, and sizes (B, N) → y (B, N, H, D)."""
    batch, heads, tokens, dim = q.shape
    q, k, v = with_unit_stride(q, k, v)
    size = size.to(torch.float32).contiguous()
    y = q.new_empty(batch, tokens, heads, dim)
    grid, blocks = grid_and_blocks(q)
    _sized_attention_kernel[grid](
        q, k, v, size, y, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], heads, dim**-0.5 * LOG2_E,
        tokens=tokens, **blocks,
    )  # fmt: skip
    return y


@triton.jit
def _sized_attention_kernel(
    q_ptr, k_ptr, v_ptr, size_ptr, y_ptr, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, heads, scale,
    tokens: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    image, head, _, first = place(heads, tokens, QUERIES)
    y, _, _ = attended(
        q_ptr + image * q_b + head * q_h, k_ptr + image * k_b + head * k_h, v_ptr + image * v_b + head * v_h,
        size_ptr + image * tokens, q_n, k_n, v_n, first, scale, tokens, True, D, QUERIES, KEYS,
    )  # fmt: skip
    store_rows(y_ptr, y, image, head, heads, first, tokens, D, QUERIES)
