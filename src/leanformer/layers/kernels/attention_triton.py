# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""What attention kernels share: a block of queries of one head goes past all keys.

The running maximum and sum make the softmax exact. Where keys have sizes, a weight exp(l) · s is exp(l + log s), so no
logarithm is taken: the maximum over l alone keeps the numbers small.

B batch, H heads, N tokens, D channels of a head (a power of two).
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634


def with_unit_stride(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors (B, H, N, D), copied where their last axis is strided."""
    return tuple(each if each.stride(3) == 1 else each.contiguous() for each in tensors)


def grid_and_blocks(q: Tensor) -> tuple[tuple[int], dict[str, Any]]:
    """For queries (B, H, N, D) the number of programs, and how many queries and keys each takes at a time."""
    batch, heads, tokens, dim = q.shape
    queries, warps = (64, 4) if tokens < 512 else (128, 8)
    programs = triton.cdiv(tokens, queries) * batch * heads
    return (programs,), {"D": dim, "QUERIES": queries, "KEYS": 64, "num_warps": warps, "num_stages": 2}


@triton.jit
def place(heads, tokens: tl.constexpr, QUERIES: tl.constexpr):
    """Which image, which head, which pair of both, and which query first."""
    blocks = tl.cdiv(tokens, QUERIES)
    pair = tl.program_id(0) // blocks
    first = (tl.program_id(0) % blocks) * QUERIES
    return (pair // heads).to(tl.int64), pair % heads, pair.to(tl.int64), first


@triton.jit
def attended(
    q_ptr, k_ptr, v_ptr, size_ptr, q_n, k_n, v_n, first, scale,
    tokens: tl.constexpr, SIZED: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The weighted values (QUERIES, D), and each row's maximum and sum (QUERIES,), in powers of two."""
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
        if SIZED:
            size = tl.load(size_ptr + keys, mask=inside, other=0.0)
            p = p * size[None, :]
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_ptr + keys[:, None] * v_n + cols[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = higher
    return acc / total[:, None], top, total


@triton.jit
def store_rows(
    y_ptr, y, image, head, heads, first, tokens: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr
):  # fmt: skip
    """Write y (QUERIES, D) of one head into (B, N, H, D)."""
    cols = tl.arange(0, D)
    mine = first + tl.arange(0, QUERIES)
    width = heads * D
    places = image * tokens * width + mine[:, None] * width + head * D + cols[None, :]
    tl.store(y_ptr + places, y.to(y_ptr.dtype.element_ty), mask=mine[:, None] < tokens)
