# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""The kernel behind `sized_attention`: softmax by blocks of keys, each key's weight multiplied by its size.

One program takes a block of queries of one head past all keys; the running maximum and sum make the softmax exact. A
weight exp(l) · s is exp(l + log s), so no logarithm is taken: the maximum over l alone keeps the numbers small.

B batch, H heads, N tokens, D channels of a head (a power of two).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634


def launch(q: Tensor, k: Tensor, v: Tensor, size: Tensor) -> Tensor:
    """q, k, v (B, H, N, D), each of unit stride along D, and sizes (B, N) → y (B, N, H, D)."""
    batch, heads, tokens, dim = q.shape
    q, k, v = (t if t.stride(3) == 1 else t.contiguous() for t in (q, k, v))
    size = size.to(torch.float32).contiguous()
    y = q.new_empty(batch, tokens, heads, dim)
    queries, warps = (64, 4) if tokens < 512 else (128, 8)
    _sized_attention_kernel[(triton.cdiv(tokens, queries) * batch * heads,)](
        q, k, v, size, y, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], heads, dim**-0.5 * LOG2_E,
        tokens=tokens, D=dim, QUERIES=queries, KEYS=64, num_warps=warps, num_stages=2,
    )  # fmt: skip
    return y


@triton.jit
def _sized_attention_kernel(
    q_ptr, k_ptr, v_ptr, size_ptr, y_ptr, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, heads, scale,
    tokens: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(tokens, QUERIES)
    pair = tl.program_id(0) // blocks
    first = (tl.program_id(0) % blocks) * QUERIES
    image = (pair // heads).to(tl.int64)
    head = pair % heads
    q_ptr += image * q_b + head * q_h
    k_ptr += image * k_b + head * k_h
    v_ptr += image * v_b + head * v_h
    size_ptr += image * tokens

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
        size = tl.load(size_ptr + keys, mask=inside, other=0.0)
        p = tl.exp2(logits - higher[:, None]) * size[None, :]
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_ptr + keys[:, None] * v_n + cols[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = higher

    width = heads * D
    y = acc / total[:, None]
    places = image * tokens * width + mine[:, None] * width + head * D + cols[None, :]
    tl.store(y_ptr + places, y.to(y_ptr.dtype.element_ty), mask=mine[:, None] < tokens)
