# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""The kernel behind `merge_in_one_pass`: some programs sum the tokens of T with those that join them, others copy.

The sums come first in the grid, for they take longest. A program that sums goes past all of S and reads those tokens
alone that join one of its own; the sum is a product with their sizes, which are whole numbers.

B images, N tokens, C channels, S and T the two halves of the patches, r merged pairs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....layers.kernels.rows_triton import store_normed

SUMMED = 16
"""Tokens of T that a program sums: as many rows as a matrix unit takes at least."""


def launch(
    x: Tensor, y: Tensor, size: Tensor | None, decided: Tensor, merged: int, prefix: int, weight: Tensor | None,
    bias: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """u (B, N − r, C), LayerNorm(u) or an empty tensor where no weight is given, and sizes (B, N − r)."""
    (batch, tokens, channels), sources = x.shape, decided.shape[2]
    x, y, decided = x.contiguous(), y.contiguous(), decided.contiguous()
    u = x.new_empty(batch, tokens - merged, channels)
    z = torch.empty_like(u) if weight is not None else x.new_empty(0)
    sizes = x.new_empty(batch, tokens - merged, dtype=torch.float32)
    wide = max(16, triton.next_power_of_2(channels))
    rows = max(1, 4096 // wide)
    sums = triton.cdiv(tokens - prefix - sources, SUMMED)
    copies = triton.cdiv(prefix + sources, rows)
    _merge_kernel[((sums + copies) * batch,)](
        x, y, x if size is None else size.to(torch.float32).contiguous(), decided,
        x if weight is None else weight, x if bias is None else bias, u, z, sizes,
        batch, tokens, merged, prefix, eps,
        SOURCES=sources, SUMS=sums, C=channels, WIDE=wide, ROWS=rows, SUMMED=SUMMED, SIZED=size is not None,
        NORM=weight is not None, SHIFT=bias is not None, num_warps=8 if wide < 1024 else 16,
    )  # fmt: skip
    return u, z, sizes


@triton.jit
def _sizes(size_ptr, places, mask, SIZED: tl.constexpr):
    """The sizes of the tokens at these places, 0 where the mask says so."""
    if SIZED:
        return tl.load(size_ptr + places, mask=mask, other=0.0)
    else:
        return mask.to(tl.float32)


@triton.jit
def _rows(x_ptr, y_ptr, places, mask):
    """x + y at these places, zero elsewhere, as the residual sum would be stored."""
    x = tl.load(x_ptr + places, mask=mask, other=0.0)
    y = tl.load(y_ptr + places, mask=mask, other=0.0)
    return (x.to(tl.float32) + y.to(tl.float32)).to(x_ptr.dtype.element_ty)


@triton.jit
def _joining(
    x_ptr, y_ptr, size_ptr, decided_ptr, mine, merged, prefix,
    SOURCES: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, SUMMED: tl.constexpr, SIZED: tl.constexpr,
):  # fmt: skip
    """What joins the tokens `mine` of T, summed by sizes: (SUMMED, WIDE); and the sum of these sizes (SUMMED,)."""
    cols = tl.arange(0, WIDE)
    total = tl.zeros((SUMMED, WIDE), tl.float32)
    count = tl.zeros((SUMMED,), tl.float32)
    for start in range(0, SOURCES, 16):
        source = start + tl.arange(0, 16)
        real = source < SOURCES
        rank = tl.load(decided_ptr + source, mask=real, other=merged)
        partner = tl.load(decided_ptr + SOURCES + source, mask=real, other=-1)
        joins = (partner[None, :] == mine[:, None]) & (rank < merged)[None, :]  # (SUMMED, 16)
        here = tl.max(joins.to(tl.int32), 0) > 0
        places = prefix + 2 * source
        weight = tl.where(joins, _sizes(size_ptr, places, here, SIZED)[None, :], 0.0)
        rows = _rows(x_ptr, y_ptr, places[:, None] * C + cols[None, :], here[:, None] & (cols < C)[None, :])
        total = tl.dot(weight.to(rows.dtype), rows, total, input_precision="ieee")
        count += tl.sum(weight, 1)
    return total, count


@triton.jit
def _write_means(
    part, x_ptr, y_ptr, size_ptr, decided_ptr, gain_ptr, shift_ptr, u_ptr, z_ptr, sizes_ptr, tokens, merged, prefix,
    eps, SOURCES: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, SUMMED: tl.constexpr, SIZED: tl.constexpr,
    NORM: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Some tokens of T, each the mean of itself and what joins it."""
    cols = tl.arange(0, WIDE)
    mine = part * SUMMED + tl.arange(0, SUMMED)
    source, place = prefix + 1 + 2 * mine, prefix + SOURCES - merged + mine
    inside = source < tokens
    mask = inside[:, None] & (cols < C)[None, :]
    size = _sizes(size_ptr, source, inside, SIZED)
    total, count = _joining(
        x_ptr, y_ptr, size_ptr, decided_ptr, mine, merged, prefix, SOURCES, C, WIDE, SUMMED, SIZED
    )  # fmt: skip
    own = _rows(x_ptr, y_ptr, source[:, None] * C + cols[None, :], mask).to(tl.float32)
    whole = tl.where(inside, size + count, 1.0)
    tl.store(sizes_ptr + place, whole, mask=inside)
    u = (own * size[:, None] + total) / whole[:, None]
    places = place[:, None] * C + cols[None, :]
    store_normed(u, gain_ptr, shift_ptr, u_ptr, z_ptr, places, mask, eps, C, WIDE, NORM, SHIFT)


@triton.jit
def _write_copies(
    part, x_ptr, y_ptr, size_ptr, decided_ptr, gain_ptr, shift_ptr, u_ptr, z_ptr, sizes_ptr, merged, prefix, eps,
    SOURCES: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, SIZED: tl.constexpr,
    NORM: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """The prefix, and those tokens of S that stay, in the order of their ranks."""
    cols = tl.arange(0, WIDE)
    row = part * ROWS + tl.arange(0, ROWS)
    patch = row - prefix
    rank = tl.load(decided_ptr + patch, mask=(patch >= 0) & (patch < SOURCES), other=merged).to(tl.int32)
    source = tl.where(patch < 0, row, prefix + 2 * patch)
    place = tl.where(patch < 0, row, prefix + rank - merged)
    inside = (patch < SOURCES) & (rank >= merged)
    mask = inside[:, None] & (cols < C)[None, :]
    tl.store(sizes_ptr + place, _sizes(size_ptr, source, inside, SIZED), mask=inside)
    u = _rows(x_ptr, y_ptr, source[:, None] * C + cols[None, :], mask).to(tl.float32)
    places = place[:, None] * C + cols[None, :]
    store_normed(u, gain_ptr, shift_ptr, u_ptr, z_ptr, places, mask, eps, C, WIDE, NORM, SHIFT)


@triton.jit
def _merge_kernel(
    x_ptr, y_ptr, size_ptr, decided_ptr, gain_ptr, shift_ptr, u_ptr, z_ptr, sizes_ptr, images, tokens, merged, prefix,
    eps, SOURCES: tl.constexpr, SUMS: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    SUMMED: tl.constexpr, SIZED: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0) // images
    image = (tl.program_id(0) % images).to(tl.int64)
    x_ptr += image * tokens * C
    y_ptr += image * tokens * C
    size_ptr += image * tokens
    decided_ptr += image * 2 * SOURCES
    u_ptr += image * (tokens - merged) * C
    z_ptr += image * (tokens - merged) * C
    sizes_ptr += image * (tokens - merged)
    if part < SUMS:
        _write_means(
            part, x_ptr, y_ptr, size_ptr, decided_ptr, gain_ptr, shift_ptr, u_ptr, z_ptr, sizes_ptr, tokens, merged,
            prefix, eps, SOURCES, C, WIDE, SUMMED, SIZED, NORM, SHIFT,
        )  # fmt: skip
    else:
        _write_copies(
            part - SUMS, x_ptr, y_ptr, size_ptr, decided_ptr, gain_ptr, shift_ptr, u_ptr, z_ptr, sizes_ptr, merged,
            prefix, eps, SOURCES, C, WIDE, ROWS, SIZED, NORM, SHIFT,
        )  # fmt: skip
