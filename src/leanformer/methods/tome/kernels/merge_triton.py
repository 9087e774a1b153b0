# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""The kernel behind `merge_in_one_pass`: some programs sum the tokens of T with those that join them, others copy.

The sums come first in the grid, for they take longest. A program that sums counts, for each of its tokens, those of S
that join it; it then reads the first that joins each, all at once, then the second, for as long as there are more.

B images, N tokens, C channels, S and T the two halves of the patches, r merged pairs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....layers.kernels.rows_triton import store_normed

FEWEST = 32
"""Places for sources in a program at least: Triton 3.6 cannot count along four or fewer."""
NUMBERS, WARPS = 1024, 2
"""How many numbers a program writes, and its warps: many small programs keep more of the memory's bandwidth busy."""


def launch(
    x: Tensor, y: Tensor, size: Tensor | None, decided: Tensor, merged: int, prefix: int, weight: Tensor | None,
    bias: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """u (B, N − r, C), LayerNorm(u) or an empty tensor where no weight is given, and sizes (B, N − r)."""
    (batch, tokens, channels), sources = x.shape, decided.shape[2]
    x, y, decided = x.contiguous(), y.contiguous(), decided.contiguous()
    u = x.new_empty(batch, tokens - merged, channels)
    z = torch.empty_like(u) if weight is not None else x.new_empty(0)
    sizes = x.new_empty(batch, tokens - merged, dtype=torch.promote_types(x.dtype, torch.float32))
    wide = max(16, triton.next_power_of_2(channels))
    rows = max(1, NUMBERS // wide)
    sums = triton.cdiv(tokens - prefix - sources, rows)
    copies = triton.cdiv(prefix + sources, rows)
    _merge_kernel[((sums + copies) * batch,)](
        x, y, x if size is None else size.to(torch.float32).contiguous(), decided,
        x if weight is None else weight, x if bias is None else bias, u, z, sizes,
        batch, tokens, merged, prefix, eps,
        SOURCES=sources, MOST=max(FEWEST, triton.next_power_of_2(sources)), SUMS=sums, C=channels, WIDE=wide, ROWS=rows,
        SIZED=size is not None, NORM=weight is not None, SHIFT=bias is not None, num_warps=WARPS,
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
    """x + y at these places, zero elsewhere."""
    x = tl.load(x_ptr + places, mask=mask, other=0.0)
    y = tl.load(y_ptr + places, mask=mask, other=0.0)
    return x.to(tl.float32) + y.to(tl.float32)


@triton.jit
def _write_means(
    part, x_ptr, y_ptr, size_ptr, decided_ptr, gain_ptr, shift_ptr, u_ptr, z_ptr, sizes_ptr, tokens, merged, prefix,
    eps, SOURCES: tl.constexpr, MOST: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    SIZED: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """Some tokens of T, each the mean of itself and what joins it."""
    cols = tl.arange(0, WIDE)
    real = (cols < C)[None, :]
    mine = part * ROWS + tl.arange(0, ROWS)
    own, place = prefix + 1 + 2 * mine, prefix + SOURCES - merged + mine
    inside = own < tokens
    mask = inside[:, None] & real
    size = _sizes(size_ptr, own, inside, SIZED)
    total = _rows(x_ptr, y_ptr, own[:, None] * C + cols[None, :], mask) * size[:, None]
    source = tl.arange(0, MOST)
    rank = tl.load(decided_ptr + source, mask=source < SOURCES, other=merged)
    partner = tl.load(decided_ptr + SOURCES + source, mask=source < SOURCES, other=-1).to(tl.int32)
    joins = ((partner[None, :] == mine[:, None]) & (rank < merged)[None, :]).to(tl.int32)  # (ROWS, MOST)
    number = tl.cumsum(joins, 1) * joins  # of those that join a token the first is 1
    most, turn = tl.max(number), 1
    while turn <= most:
        at = tl.sum(tl.where(number == turn, prefix + 2 * source[None, :], 0), 1)
        there = tl.max((number == turn).to(tl.int32), 1) > 0
        more = _sizes(size_ptr, at, there, SIZED)
        total += _rows(x_ptr, y_ptr, at[:, None] * C + cols[None, :], there[:, None] & real) * more[:, None]
        size += more
        turn += 1
    tl.store(sizes_ptr + place, size, mask=inside)
    u = total / tl.where(inside, size, 1.0)[:, None]
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
    u = _rows(x_ptr, y_ptr, source[:, None] * C + cols[None, :], mask)
    places = place[:, None] * C + cols[None, :]
    store_normed(u, gain_ptr, shift_ptr, u_ptr, z_ptr, places, mask, eps, C, WIDE, NORM, SHIFT)


@triton.jit
def _merge_kernel(
    x_ptr, y_ptr, size_ptr, decided_ptr, gain_ptr, shift_ptr, u_ptr, z_ptr, sizes_ptr, images, tokens, merged, prefix,
    eps, SOURCES: tl.constexpr, MOST: tl.constexpr, SUMS: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, SIZED: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr,
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
            prefix, eps, SOURCES, MOST, C, WIDE, ROWS, SIZED, NORM, SHIFT,
        )  # fmt: skip
    else:
        _write_copies(
            part - SUMS, x_ptr, y_ptr, size_ptr, decided_ptr, gain_ptr, shift_ptr, u_ptr, z_ptr, sizes_ptr, merged,
            prefix, eps, SOURCES, C, WIDE, ROWS, SIZED, NORM, SHIFT,
        )  # fmt: skip
