# pyright: reportCallIssue=false, reportOperatorIssue=false
"""The mixer-free block as one kernel: x is read once, y is written once, the hidden activation stays on the chip.

The maths stand in `mixer_free`; each program computes them for a tile of rows of one image, and leaves Σy and Σy² for
the block behind it. Channels are a power of two or the sum of two (96 = 64 + 32), and hidden channels are whole
chunks, each of 16 or more: `one_pass_takes` says so beforehand.

B images, N pixels, C channels, R hidden channels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....layers.kernels import on_device_of
from .mixer_free import block_by_products, halves, path_block_by_products, whole_chunk

TILES = {64: (128, 64, 2), 128: (64, 64, 3)}
"""Lower part of the channels → rows of a tile, hidden channels at a time, pipeline stages; measured on an H200."""


@torch.library.custom_op("leanformer::block_in_one_pass", mutates_args=())
def block_in_one_pass(
    x: Tensor, sums: Tensor, norm1: list[Tensor], norm2: list[Tensor], fc1: list[Tensor], fc2: list[Tensor], eps: float
) -> tuple[Tensor, Tensor]:
    """The block by one kernel: x (B, N, C) and its `channel_sums` → y and the sums of y."""
    try:
        return _launched(x, sums, (*norm1, *norm2, *fc1, *fc2, x), len(fc1[0]), eps, path=False)
    except triton.OutOfResources:  # on a chip whose programs have less memory
        return block_by_products(x, sums, *(tuple(pair) for pair in (norm1, norm2, fc1, fc2)), eps)


@block_in_one_pass.register_fake
def _(x, sums, norm1, norm2, fc1, fc2, eps):
    return x.new_empty(x.shape), sums.new_empty(sums.shape)


@torch.library.custom_op("leanformer::path_block_in_one_pass", mutates_args=())
def path_block_in_one_pass(
    x: Tensor, sums: Tensor, norm1: list[Tensor], weights: list[Tensor], eps: float
) -> tuple[Tensor, Tensor]:
    """The block whose FFN is three products W, b, W_in, b_in, W_out: x (B, N, C) and its sums → y and its sums."""
    w, b, w_in, b_in, w_out = weights
    try:
        return _launched(x, sums, (*norm1, *norm1, w_in, b_in, w_out, b, w), len(w_in), eps, path=True)
    except triton.OutOfResources:
        return path_block_by_products(x, sums, (norm1[0], norm1[1]), weights, eps)


@path_block_in_one_pass.register_fake
def _(x, sums, norm1, weights, eps):
    return x.new_empty(x.shape), sums.new_empty(sums.shape)


def _launched(
    x: Tensor, sums: Tensor, weights: tuple[Tensor, ...], hidden: int, eps: float, path: bool
) -> tuple[Tensor, Tensor]:
    x, sums = x.contiguous(), sums.contiguous()
    y, out = torch.empty_like(x), torch.zeros_like(sums)
    batch, pixels, channels = x.shape
    low, high = halves(channels)
    rows, chunk, stages = TILES.get(low, (64, 64, 2))
    with on_device_of(x):
        _block_kernel[(triton.cdiv(pixels, rows) * batch,)](
            x, y, sums, out, *weights, pixels, eps,
            C=channels, R=hidden, LOW=low, HIGH=high, ROWS=rows, CHUNK=min(chunk, whole_chunk(hidden)),
            FAST=x.is_cuda, PATH=path, num_warps=4 if low < 256 else 8, num_stages=stages,
        )  # fmt: skip
    return y, out


@triton.jit
def _gelu(x, FAST: tl.constexpr):
    inner = 0.7978845608028654 * x * (1 + 0.044715 * x * x)
    if FAST:
        tanh = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        tanh = 2 / (1 + tl.exp(-2 * inner)) - 1
    return 0.5 * x * (1 + tanh)


@triton.jit
def _coefficients(s1, s2, g1, b1, g2, b2, mean, rstd, mean2, rstd2):
    """u = a1 x + d1 and GN₂(u) = a2 x + d2, for each channel."""
    a1 = 1 + rstd * g1
    d1 = b1 - mean * rstd * g1
    return a1, d1, a1 * rstd2 * g2, (d1 - mean2) * rstd2 * g2 + b2


@triton.jit
def _moments_of_u(s1, s2, g1, b1, mean, rstd, pixels):
    a1 = 1 + rstd * g1
    d1 = b1 - mean * rstd * g1
    return tl.sum(a1 * s1 + pixels * d1), tl.sum(a1 * a1 * s2 + 2 * a1 * d1 * s1 + pixels * d1 * d1)


@triton.jit
def _load(pointer, offsets):
    return tl.load(pointer + offsets).to(tl.float32)


@triton.jit
def _finish(x, a1, d1, acc, bias, y_ptr, out_ptr, rows, cols, inside, C: tl.constexpr, PATH: tl.constexpr):
    y = acc + bias[None, :]
    if not PATH:
        y += x * a1[None, :] + d1[None, :]
    tl.store(y_ptr + rows[:, None] * C + cols[None, :], y, mask=inside[:, None])
    y = tl.where(inside[:, None], y, 0.0)
    tl.atomic_add(out_ptr + cols, tl.sum(y, 0), sem="relaxed")
    tl.atomic_add(out_ptr + C + cols, tl.sum(y * y, 0), sem="relaxed")


@triton.jit
def _block_kernel(
    x_ptr, y_ptr, sums_ptr, out_ptr, g1_ptr, b1_ptr, g2_ptr, b2_ptr, w1_ptr, c1_ptr, w2_ptr, c2_ptr, path_ptr,
    pixels, eps,
    C: tl.constexpr, R: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, FAST: tl.constexpr, PATH: tl.constexpr,
):  # fmt: skip
    parts = tl.cdiv(pixels, ROWS)
    image = (tl.program_id(0) // parts).to(tl.int64)
    x_ptr += image * pixels * C
    y_ptr += image * pixels * C
    sums_ptr += image * 2 * C
    out_ptr += image * 2 * C
    kind = w1_ptr.dtype.element_ty
    rows = tl.program_id(0) % parts * ROWS + tl.arange(0, ROWS)
    inside = rows < pixels

    low = tl.arange(0, LOW)
    s1, s2 = _load(sums_ptr, low), _load(sums_ptr, C + low)
    g1, b1, g2, b2 = _load(g1_ptr, low), _load(b1_ptr, low), _load(g2_ptr, low), _load(b2_ptr, low)
    count = pixels * C
    total, squares = tl.sum(s1), tl.sum(s2)
    if HIGH:
        high = LOW + tl.arange(0, HIGH)
        s1h, s2h = _load(sums_ptr, high), _load(sums_ptr, C + high)
        g1h, b1h, g2h, b2h = _load(g1_ptr, high), _load(b1_ptr, high), _load(g2_ptr, high), _load(b2_ptr, high)
        total += tl.sum(s1h)
        squares += tl.sum(s2h)
    mean = total / count
    rstd = tl.rsqrt(tl.maximum(squares / count - mean * mean, 0.0) + eps)
    total, squares = _moments_of_u(s1, s2, g1, b1, mean, rstd, pixels)
    if HIGH:
        more, more_squares = _moments_of_u(s1h, s2h, g1h, b1h, mean, rstd, pixels)
        total += more
        squares += more_squares
    mean2 = total / count
    rstd2 = tl.rsqrt(tl.maximum(squares / count - mean2 * mean2, 0.0) + eps)

    a1, d1, a2, d2 = _coefficients(s1, s2, g1, b1, g2, b2, mean, rstd, mean2, rstd2)
    x = tl.load(x_ptr + rows[:, None] * C + low[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    if PATH:
        a2, d2 = a1, d1
    z = (x * a2[None, :] + d2[None, :]).to(kind)
    acc = tl.zeros((ROWS, LOW), tl.float32)
    if HIGH:
        a1h, d1h, a2h, d2h = _coefficients(s1h, s2h, g1h, b1h, g2h, b2h, mean, rstd, mean2, rstd2)
        xh = tl.load(x_ptr + rows[:, None] * C + high[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
        if PATH:
            a2h, d2h = a1h, d1h
        zh = (xh * a2h[None, :] + d2h[None, :]).to(kind)
        acch = tl.zeros((ROWS, HIGH), tl.float32)

    if PATH:  # the sum with the third product, which stands for the residual
        acc = tl.dot(z, tl.load(path_ptr + low[None, :] * C + low[:, None]), acc, input_precision="ieee")
        if HIGH:
            acc = tl.dot(zh, tl.load(path_ptr + low[None, :] * C + high[:, None]), acc, input_precision="ieee")
            acch = tl.dot(z, tl.load(path_ptr + high[None, :] * C + low[:, None]), acch, input_precision="ieee")
            acch = tl.dot(zh, tl.load(path_ptr + high[None, :] * C + high[:, None]), acch, input_precision="ieee")

    for start in range(0, R, CHUNK):
        chunk = start + tl.arange(0, CHUNK)
        w1 = tl.load(w1_ptr + chunk[None, :] * C + low[:, None])
        h = tl.dot(z, w1, input_precision="ieee")
        if HIGH:
            w1h = tl.load(w1_ptr + chunk[None, :] * C + high[:, None])
            h = tl.dot(zh, w1h, h, input_precision="ieee")
        h = _gelu(h + tl.load(c1_ptr + chunk).to(tl.float32)[None, :], FAST).to(kind)
        w2 = tl.load(w2_ptr + low[None, :] * R + chunk[:, None])
        acc = tl.dot(h, w2, acc, input_precision="ieee")
        if HIGH:
            w2h = tl.load(w2_ptr + high[None, :] * R + chunk[:, None])
            acch = tl.dot(h, w2h, acch, input_precision="ieee")

    _finish(x, a1, d1, acc, _load(c2_ptr, low), y_ptr, out_ptr, rows, low, inside, C, PATH)
    if HIGH:
        _finish(xh, a1h, d1h, acch, _load(c2_ptr, high), y_ptr, out_ptr, rows, high, inside, C, PATH)
