# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""The kernel behind `match_keys`: one program an image.

Cosines are products of three TF32 parts, which keep float32's digits; what is no number comes last, as in the plain
form.

H heads, P patches, S and T the two halves of these, D channels of a head; WIDE the power of two that holds S.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....layers.kernels.attention_triton import with_unit_stride


def launch(keys: Tensor) -> Tensor:
    """Keys (B, H, P, D) → ranks and partners (B, 2, S)."""
    batch, heads, patches, dim = keys.shape
    (keys,) = with_unit_stride(keys)
    sources = (patches + 1) // 2
    decided = torch.empty(batch, 2, sources, dtype=torch.long, device=keys.device)
    wide = max(16, triton.next_power_of_2(sources))
    _match_kernel[(batch,)](
        keys, decided, *keys.stride()[:3], patches, sources, HEADS=heads, D=dim, WIDE=wide,
        num_warps=4 if wide < 64 else 8,
    )  # fmt: skip
    return decided


@triton.jit
def _unit(keys_ptr, first, patches, k_h, k_n, HEADS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr):
    """The metric of every second patch from `first` on, each of length one: (WIDE, D)."""
    rows = first + 2 * tl.arange(0, WIDE)
    cols = tl.arange(0, D)
    places = rows[:, None] * k_n + cols[None, :]
    total = tl.zeros((WIDE, D), tl.float32)
    for head in range(HEADS):
        total += tl.load(keys_ptr + head * k_h + places, mask=rows[:, None] < patches, other=0.0).to(tl.float32)
    metric = total / HEADS
    return metric / tl.maximum(tl.sqrt(tl.sum(metric * metric, 1)), 1e-12)[:, None]


@triton.jit
def _match_kernel(
    keys_ptr, decided_ptr, k_b, k_h, k_n, patches, sources,
    HEADS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    keys_ptr += image * k_b
    mine = _unit(keys_ptr, 0, patches, k_h, k_n, HEADS, D, WIDE)
    theirs = _unit(keys_ptr, 1, patches, k_h, k_n, HEADS, D, WIDE)
    cosines = tl.dot(mine, tl.trans(theirs), input_precision="tf32x3")  # (S, T)
    places = tl.arange(0, WIDE)
    there = (places < patches - sources)[None, :]
    nothing = (cosines != cosines) & there
    cosines = tl.where(nothing, float("inf"), tl.where(there, cosines, float("-inf")))
    best, partner = tl.max(cosines, 1, return_indices=True)
    best = tl.where(tl.max(nothing.to(tl.int32), 1) > 0, -2.0, best)
    earlier = (best[None, :] == best[:, None]) & (places[None, :] < places[:, None])
    ahead = ((best[None, :] > best[:, None]) | earlier) & (places < sources)[None, :]
    rank = tl.sum(ahead.to(tl.int32), 1)
    decided_ptr += image * 2 * sources + places
    tl.store(decided_ptr, rank.to(tl.int64), mask=places < sources)
    tl.store(decided_ptr + sources, partner.to(tl.int64), mask=places < sources)
