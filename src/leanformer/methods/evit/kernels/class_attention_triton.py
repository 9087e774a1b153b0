# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""The kernel behind `class_attention`: softmax by blocks of keys, and the first row of the map told in the end.

One program takes a block of queries of one head past all keys; the running maximum and sum make the softmax exact.
The program that owns query 0 then knows the normaliser of that row, and goes over the keys once more for it alone.
Heads are averaged in a fixed order, so that the same inputs always rank tokens alike.

B batch, H heads, N tokens, D channels of a head (a power of two).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634


def launch(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """q, k, v (B, H, N, D), each of unit stride along D → y (B, N, H, D) and the class row (B, N) in float32."""
    batch, heads, tokens, dim = q.shape
    q, k, v = (t if t.stride(3) == 1 else t.contiguous() for t in (q, k, v))
    y = q.new_empty(batch, tokens, heads, dim)
    rows = torch.empty(batch, heads, tokens, dtype=torch.float32, device=q.device)
    queries, warps = (64, 4) if tokens < 512 else (128, 8)
    _attention_kernel[(triton.cdiv(tokens, queries) * batch * heads,)](
        q, k, v, y, rows, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], heads, tokens, dim**-0.5 * LOG2_E,
        D=dim, QUERIES=queries, KEYS=64, num_warps=warps, num_stages=2,
    )  # fmt: skip
    return y, rows.mean(1)


@triton.jit
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, rows_ptr, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, heads,
    tokens: tl.constexpr, scale, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(tokens, QUERIES)
    pair = tl.program_id(0) // blocks
    first = (tl.program_id(0) % blocks) * QUERIES
    image = (pair // heads).to(tl.int64)
    head = pair % heads
    q_ptr += image * q_b + head * q_h
    k_ptr += image * k_b + head * k_h
    v_ptr += image * v_b + head * v_h

    cols = tl.arange(0, D)
    mine = first + tl.arange(0, QUERIES)
    q = tl.load(q_ptr + mine[:, None] * q_n + cols[None, :], mask=mine[:, None] < tokens, other=0.0)
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, D), tl.float32)
    for start in range(0, tokens, KEYS):
        keys = start + tl.arange(0, KEYS)
        inside = keys < tokens
        k = tl.load(k_ptr + keys[None, :] * k_n + cols[:, None], mask=inside[None, :], other=0.0)
        logits = tl.dot(q, k, input_precision="ieee") * scale
        logits = tl.where(inside[None, :], logits, float("-inf"))
        higher = tl.maximum(top, tl.max(logits, 1))
        p = tl.exp2(logits - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_ptr + keys[:, None] * v_n + cols[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = higher

    width = heads * D
    y = acc / total[:, None]
    places = image * tokens * width + mine[:, None] * width + head * D + cols[None, :]
    tl.store(y_ptr + places, y.to(y_ptr.dtype.element_ty), mask=mine[:, None] < tokens)
    if first == 0:
        _class_row(
            q_ptr, k_ptr, rows_ptr + pair.to(tl.int64) * tokens, k_n, tokens, scale, top, total, D, QUERIES, KEYS
        )


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
