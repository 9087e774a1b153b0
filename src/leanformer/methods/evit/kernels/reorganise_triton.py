# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""The kernel behind `reorganise`: some programs copy kept tokens, one an image sums those that leave.

The sums come first in the grid, for they take longest. A program that sums finds out by itself which tokens leave: it
compares their indices with all that were chosen, and does not touch the memory of those.

B images, P tokens behind the prefix, K kept, C channels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....layers.kernels.rows_triton import store_normed

COMPARED = 65536
"""Comparisons of indices that a program makes at once at most; more would not fit into the registers of its threads."""


def launch(
    x: Tensor, y: Tensor, score: Tensor, chosen: Tensor, fuse: bool, weight: Tensor | None, bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """u (B, prefix + K + 1, C) and LayerNorm(u), or an empty tensor where no weight is given."""
    (batch, tokens, channels), patches, keep = x.shape, score.shape[1], chosen.shape[1]
    x, y, chosen = x.contiguous(), y.contiguous(), chosen.contiguous()
    score = score if score.stride(1) == 1 else score.contiguous()
    leading = tokens - patches + keep
    u = x.new_empty(batch, leading + int(fuse), channels)
    z = torch.empty_like(u) if weight is not None else x.new_empty(0)
    wide = triton.next_power_of_2(channels)
    rows = max(1, 4096 // wide)
    kept = triton.next_power_of_2(keep)
    parts = triton.cdiv(leading, rows) + int(fuse)
    _reorganise_kernel[(parts * batch,)](
        x, y, score, chosen, weight if weight is not None else x, bias if bias is not None else x, u, z,
        batch, tokens, patches, keep, score.stride(0), eps,
        C=channels, WIDE=wide, ROWS=rows, TOKENS=max(2, min(16384 // wide, COMPARED // kept)), KEPT=kept,
        FUSE=int(fuse), NORM=weight is not None, SHIFT=bias is not None, num_warps=8,
    )  # fmt: skip
    return u, z


@triton.jit
def _sum_leaving(
    x_ptr, y_ptr, score_ptr, chosen_ptr, patches, prefix, keep,
    C: tl.constexpr, WIDE: tl.constexpr, TOKENS: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """The tokens of an image that were not chosen, summed by their scores: (1, WIDE)."""
    cols = tl.arange(0, WIDE)
    slots = tl.arange(0, KEPT)
    chosen = tl.load(chosen_ptr + slots, mask=slots < keep, other=-1)
    acc = tl.zeros((1, WIDE), tl.float32)
    for start in range(0, patches, TOKENS):
        mine = start + tl.arange(0, TOKENS)
        kept = tl.max((mine[:, None] == chosen[None, :]).to(tl.int32), 1)
        leaves = (mine < patches) & (kept == 0)
        weight = tl.load(score_ptr + mine, mask=leaves, other=0.0).to(tl.float32)
        places = (prefix + mine)[:, None] * C + cols[None, :]
        mask = leaves[:, None] & (cols < C)[None, :]
        x = tl.load(x_ptr + places, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + places, mask=mask, other=0.0).to(tl.float32)
        acc += tl.sum((x + y) * weight[:, None], 0)[None, :]
    return acc


@triton.jit
def _reorganise_kernel(
    x_ptr, y_ptr, score_ptr, chosen_ptr, gain_ptr, shift_ptr, u_ptr, z_ptr, images, tokens, patches, keep, score_b, eps,
    C: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, KEPT: tl.constexpr,
    FUSE: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0) // images - FUSE
    image = (tl.program_id(0) % images).to(tl.int64)
    prefix = tokens - patches
    leading = prefix + keep
    x_ptr += image * tokens * C
    y_ptr += image * tokens * C
    u_ptr += image * (leading + FUSE) * C
    z_ptr += image * (leading + FUSE) * C
    chosen_ptr += image * keep
    cols = tl.arange(0, WIDE)
    real = (cols < C)[None, :]
    if part < 0:
        score_ptr += image * score_b
        u = _sum_leaving(x_ptr, y_ptr, score_ptr, chosen_ptr, patches, prefix, keep, C, WIDE, TOKENS, KEPT)
        store_normed(u, gain_ptr, shift_ptr, u_ptr, z_ptr, leading * C + cols[None, :], real, eps, C, WIDE, NORM, SHIFT)
    else:
        rows = part * ROWS + tl.arange(0, ROWS)
        behind = tl.load(chosen_ptr + rows - prefix, mask=(rows < leading) & (rows >= prefix), other=0)
        source = tl.where(rows < prefix, rows, prefix + behind)
        mask = (rows < leading)[:, None] & real
        places = source[:, None] * C + cols[None, :]
        x = tl.load(x_ptr + places, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + places, mask=mask, other=0.0).to(tl.float32)
        places = rows[:, None] * C + cols[None, :]
        store_normed(x + y, gain_ptr, shift_ptr, u_ptr, z_ptr, places, mask, eps, C, WIDE, NORM, SHIFT)
