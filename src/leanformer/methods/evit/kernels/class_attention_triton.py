# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""The kernel behind `class_attention`: softmax by blocks of keys, and the first row of the map told in the end.

The program that owns query 0 knows the normaliser of that row when it is done, and goes over the keys once more for it
alone. Heads are averaged in a fixed order, so that the same inputs always rank tokens alike.

B batch, H heads, N tokens, D channels of a head (a power of two).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....layers.kernels.attention_triton import LOG2_E, attended, grid_and_blocks, place, store_rows, with_unit_stride


def launch(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """q, k, v (B, H, N, D), each of unit stride along D → y (B, N, H, D) and the class row (B, N) in float32."""
    batch, heads, tokens, dim = q.shape
    q, k, v = with_unit_stride(q, k, v)
    y = q.new_empty(batch, tokens, heads, dim)
    rows = torch.empty(batch, heads, tokens, dtype=torch.float32, device=q.device)
    grid, blocks = grid_and_blocks(q)
    _attention_kernel[grid](
        q, k, v, y, rows, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], heads, dim**-0.5 * LOG2_E,
        tokens=tokens, **blocks,
    )  # fmt: skip
    return y, rows.mean(1)


@triton.jit
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, rows_ptr, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, heads, scale,
    tokens: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    image, head, pair, first = place(heads, tokens, QUERIES)
    q_ptr += image * q_b + head * q_h
    k_ptr += image * k_b + head * k_h
    v_ptr += image * v_b + head * v_h
    y, top, total = attended(q_ptr, k_ptr, v_ptr, None, q_n, k_n, v_n, first, scale, tokens, False, D, QUERIES, KEYS)
    store_rows(y_ptr, y, image, head, heads, first, tokens, D, QUERIES)
    if first == 0:
        _class_row(q_ptr, k_ptr, rows_ptr + pair * tokens, k_n, tokens, scale, top, total, D, QUERIES, KEYS)


@triton.jit
def _class_row(
    q_ptr, k_ptr, row_ptr, k_n, tokens: tl.constexpr, scale, top, total,
    D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, D)
    leading = tl.arange(0, QUERIES) == 0
    top = tl.sum(tl.where(leading, top, 0.0))
    total = tl.sum(tl.where(leading, total, 0.0))
    q = tl.load(q_ptr + cols).to(tl.float32)
    for start in range(0, tokens, KEYS):
        keys = start + tl.arange(0, KEYS)
        inside = keys < tokens
        k = tl.load(k_ptr + keys[:, None] * k_n + cols[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        logits = tl.sum(k * q[None, :], 1) * scale
        tl.store(row_ptr + keys, tl.exp2(logits - top) / total, mask=inside)
