# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""The two kernels behind `pool`: sums of each image, then windows, scale and residual.

The second walks down a strip of the map and keeps the sums of three rows in registers: each pixel is read from memory
once, and twice more from the nearest cache for its two neighbours.

B images, H x W pixels, C channels, the channels last.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

SPLIT = 16
"""Programs that share the sums of one image."""
ACROSS, DOWN = 8, 14
"""Pixels of a strip: side by side, and below each other."""


def launch(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x (B, H, W, C) → x + gain / σ · (pool(x) − x), σ of each image over all its pixels and channels."""
    batch, height, width, channels = x.shape
    x, y = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sums = torch.empty(batch, 2, SPLIT, dtype=torch.float32, device=x.device)
    count = height * width * channels
    _sums_kernel[(SPLIT * batch,)](x, sums, count, triton.cdiv(count, SPLIT), SPLIT=SPLIT, BLOCK=2048, num_warps=4)
    block = 128 if channels % 128 == 0 else 64
    down, across, deep = triton.cdiv(height, DOWN), triton.cdiv(width, ACROSS), triton.cdiv(channels, block)
    _pool_kernel[(across * down * deep * batch,)](
        x, y, sums, gain, height, width, eps,
        C=channels, BLOCK=block, ACROSS=ACROSS, DOWN=DOWN, SPLIT=SPLIT, num_warps=4,
    )  # fmt: skip
    return y


@triton.jit
def _sums_kernel(x_ptr, sums_ptr, count, share, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    """Σ(x − x₀) and Σ(x − x₀)² of a share of an image; x₀, its first number, keeps a large mean from drowning σ."""
    part, image = tl.program_id(0) % SPLIT, (tl.program_id(0) // SPLIT).to(tl.int64)
    x_ptr += image * count
    origin = tl.load(x_ptr).to(tl.float32)
    stop = tl.minimum((part + 1) * share, count)
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(part * share, stop, BLOCK):
        places = start + tl.arange(0, BLOCK)
        inside = places < stop
        x = tl.where(inside, tl.load(x_ptr + places, mask=inside, other=0.0).to(tl.float32) - origin, 0.0)
        total += x
        squares += x * x
    sums_ptr += image * 2 * SPLIT + part
    tl.store(sums_ptr, tl.sum(total))
    tl.store(sums_ptr + SPLIT, tl.sum(squares))


@triton.jit
def _row(x_ptr, h, w, cols, height, width, C: tl.constexpr):
    """Row h: each pixel with its neighbours to the left and right summed, and each pixel; zero outside of the map."""
    line = h + tl.zeros_like(w)
    there = (line >= 0) & (line < height)
    real = (cols < C)[None, :]
    places = (line * width + w)[:, None] * C + cols[None, :]
    centre = tl.load(x_ptr + places, mask=(there & (w < width))[:, None] & real, other=0.0).to(tl.float32)
    left = tl.load(x_ptr + places - C, mask=(there & (w > 0) & (w <= width))[:, None] & real, other=0.0).to(tl.float32)
    right = tl.load(x_ptr + places + C, mask=(there & (w + 1 < width))[:, None] & real, other=0.0).to(tl.float32)
    return left + centre + right, centre


@triton.jit
def _pool_kernel(
    x_ptr, y_ptr, sums_ptr, gain_ptr, height, width, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, ACROSS: tl.constexpr, DOWN: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(C, BLOCK)
    strips = tl.cdiv(width, ACROSS)
    parts = blocks * strips * tl.cdiv(height, DOWN)
    image, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    count = height * width * C
    x_ptr += image * count
    y_ptr += image * count
    sums_ptr += image * 2 * SPLIT
    mean = tl.sum(tl.load(sums_ptr + tl.arange(0, SPLIT))) / count
    square = tl.sum(tl.load(sums_ptr + SPLIT + tl.arange(0, SPLIT))) / count
    variance = square - mean * mean
    rstd = tl.rsqrt(tl.where(variance < 0, 0.0, variance) + eps)  # what is no number stays so, which a maximum loses

    cols = part % blocks * BLOCK + tl.arange(0, BLOCK)
    w = part // blocks % strips * ACROSS + tl.arange(0, ACROSS)
    first = part // blocks // strips * DOWN
    gain = tl.load(gain_ptr + cols, mask=cols < C, other=0.0).to(tl.float32) * rstd
    beside = 1 + (w > 0).to(tl.int32) + (w + 1 < width).to(tl.int32)  # columns of the window inside the map

    above, _ = _row(x_ptr, first - 1, w, cols, height, width, C)
    here, centre = _row(x_ptr, first, w, cols, height, width, C)
    for h in range(first, tl.minimum(first + DOWN, height)):
        below, following = _row(x_ptr, h + 1, w, cols, height, width, C)
        window = beside * (tl.minimum(h, 1) + 1 + tl.minimum(height - 1 - h, 1))
        mean_of_window = (above + here + below) / window.to(tl.float32)[:, None]
        y = centre + gain[None, :] * (mean_of_window - centre)
        places = (h * width + w)[:, None] * C + cols[None, :]
        tl.store(y_ptr + places, y.to(y_ptr.dtype.element_ty), mask=(w < width)[:, None] & (cols[None, :] < C))
        above, here, centre = here, below, following
