# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""The kernel behind `slim`: a program makes some mixtures of one image, the channels strip by strip.

Where one chunk holds all patches, a program finds its weights once, keeps them, and multiplies every strip by them.
Where there are more patches they come chunk by chunk, and the running maximum and sum make the softmax exact. Programs
that share mixtures, for the sake of more programs, find the same weights again: that costs less than writing them and
reading them back. The prefix tokens are copied by the programs of the first mixtures: read before the patches, written
after them, so that nobody waits for them.

B images, N patches, M mixtures, C channels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
WHOLE = 256
"""The most patches that are taken at once."""
MANY_PROGRAMS = 256
"""So many keep the chip busy: with more, each takes several strips; with fewer, tiles are small."""


def launch(x: Tensor, logits: Tensor, prior: Tensor | None, prefix: int) -> Tensor:
    """x (B, prefix + N, C), logits (B, N, M) and prior (M, N) → u (B, prefix + M, C)."""
    (batch, patches, mixtures), channels = logits.shape, x.shape[2]
    x, logits = (t if t.stride(2) == 1 else t.contiguous() for t in (x, logits))
    u = x.new_empty(batch, prefix + mixtures, channels)
    rows, cols, chunk, strips, warps = tiles(batch, patches, mixtures, channels, x.dtype)
    _slim_kernel[(batch * triton.cdiv(mixtures, rows) * triton.cdiv(channels, cols * strips),)](
        x, logits, prior if prior is not None else x, u, *x.stride()[:2], *logits.stride()[:2],
        *(prior.stride() if prior is not None else (0, 0)),
        N=patches, M=mixtures, C=channels, PREFIX=prefix, HEAD=triton.next_power_of_2(max(prefix, 1)),
        PRIOR=prior is not None, ROWS=rows, COLS=cols, CHUNK=chunk, STRIPS=strips, num_warps=warps, num_stages=2,
    )  # fmt: skip
    return u


def tiles(batch: int, patches: int, mixtures: int, channels: int, dtype: torch.dtype) -> tuple[int, int, int, int, int]:
    """Mixtures of a program, channels of a strip, patches of a chunk, strips of a program, and its warps.

    >>> tiles(256, 196, 98, 384, torch.bfloat16), tiles(1, 196, 98, 384, torch.bfloat16)
    ((64, 64, 256, 6, 8), (16, 32, 256, 1, 4))
    """
    few = (16, 32, WHOLE, 4)
    many = (64, 64, WHOLE, 8) if patches <= WHOLE else (64, 128, 64, 4)
    if dtype == torch.float32:  # multiplied without the matrix units, out of registers
        few, many = (16, 32, 32, 4), (32, 64, 32, 4)
    programs = batch * triton.cdiv(mixtures, many[0]) * triton.cdiv(channels, many[1])
    *sizes, warps = many if programs >= MANY_PROGRAMS else few
    shape = (mixtures, channels, patches)
    rows, cols, chunk = (min(size, max(16, triton.next_power_of_2(n))) for size, n in zip(sizes, shape, strict=True))
    if chunk < patches:
        return rows, cols, chunk, 1, warps
    strips = triton.cdiv(channels, cols)
    together = max(1, batch * triton.cdiv(mixtures, rows) * strips // MANY_PROGRAMS)
    return rows, cols, chunk, triton.cdiv(strips, triton.cdiv(strips, together)), warps


@triton.jit
def _logits(
    logits_ptr, prior_ptr, mine, keys, logits_n: tl.constexpr, prior_m: tl.constexpr, prior_n: tl.constexpr,
    N: tl.constexpr, M: tl.constexpr, PRIOR: tl.constexpr,
):  # fmt: skip
    """Logits of some mixtures over some patches, (ROWS, CHUNK), for powers of two; patches that are none weigh none."""
    inside = (keys < N)[None, :]
    mask = (mine < M)[:, None] & inside
    logits = tl.load(logits_ptr + keys[None, :] * logits_n + mine[:, None], mask=mask, other=0.0).to(tl.float32)
    if PRIOR:
        places = mine[:, None] * prior_m + keys[None, :] * prior_n
        logits += tl.load(prior_ptr + places, mask=mask, other=0.0).to(tl.float32)
    return tl.where(inside, logits * LOG2_E, float("-inf"))


@triton.jit
def _patches(x_ptr, keys, cols, x_n: tl.constexpr, N: tl.constexpr, C: tl.constexpr, PREFIX: tl.constexpr):
    """Some channels of some patches, (CHUNK, COLS); zeros where there are none."""
    mask = (keys < N)[:, None] & (cols < C)[None, :]
    return tl.load(x_ptr + (PREFIX + keys)[:, None] * x_n + cols[None, :], mask=mask, other=0.0)


@triton.jit
def _further_chunks(
    acc, top, total, x_ptr, logits_ptr, prior_ptr, mine, keys, cols, x_n: tl.constexpr, logits_n: tl.constexpr,
    prior_m: tl.constexpr, prior_n: tl.constexpr,
    N: tl.constexpr, M: tl.constexpr, C: tl.constexpr, PREFIX: tl.constexpr, PRIOR: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The sum of a strip past the patches behind the first chunk, and that of the weights."""
    for start in range(CHUNK, N, CHUNK):
        logits = _logits(logits_ptr, prior_ptr, mine, start + keys, logits_n, prior_m, prior_n, N, M, PRIOR)
        higher = tl.maximum(top, tl.max(logits, 1))
        p = tl.exp2(logits - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        x = _patches(x_ptr, start + keys, cols, x_n, N, C, PREFIX)
        acc = tl.dot(p.to(x.dtype), x, acc * shrink[:, None], input_precision="ieee")
        top = higher
    return acc, total


@triton.jit
def _slim_kernel(
    x_ptr, logits_ptr, prior_ptr, u_ptr, x_b: tl.constexpr, x_n: tl.constexpr, logits_b: tl.constexpr,
    logits_n: tl.constexpr, prior_m: tl.constexpr, prior_n: tl.constexpr,
    N: tl.constexpr, M: tl.constexpr, C: tl.constexpr, PREFIX: tl.constexpr, HEAD: tl.constexpr, PRIOR: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, CHUNK: tl.constexpr, STRIPS: tl.constexpr,
):  # fmt: skip
    parts = tl.cdiv(C, COLS * STRIPS)
    blocks = tl.cdiv(M, ROWS) * parts
    image = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    x_ptr += image * x_b
    logits_ptr += image * logits_b
    u_ptr += image * ((PREFIX + M) * C)
    mine = (block // parts) * ROWS + tl.arange(0, ROWS)
    keys = tl.arange(0, CHUNK)
    logits = _logits(logits_ptr, prior_ptr, mine, keys, logits_n, prior_m, prior_n, N, M, PRIOR)
    top = tl.max(logits, 1)
    p = tl.exp2(logits - top[:, None])
    total = tl.sum(p, 1)
    heads = ((block // parts) * HEAD + tl.arange(0, HEAD))[:, None]
    for strip in range(STRIPS):
        cols = ((block % parts) * STRIPS + strip) * COLS + tl.arange(0, COLS)
        real = (cols < C)[None, :]
        passes = (heads < PREFIX) & real
        head = tl.load(x_ptr + heads * x_n + cols[None, :], mask=passes, other=0.0)
        x = _patches(x_ptr, keys, cols, x_n, N, C, PREFIX)
        acc = tl.dot(p.to(x.dtype), x, input_precision="ieee")
        weight = total
        if N > CHUNK:
            acc, weight = _further_chunks(
                acc, top, total, x_ptr, logits_ptr, prior_ptr, mine, keys, cols, x_n, logits_n, prior_m, prior_n,
                N, M, C, PREFIX, PRIOR, CHUNK,
            )  # fmt: skip
        places = (PREFIX + mine)[:, None] * C + cols[None, :]
        tl.store(u_ptr + places, (acc * (1.0 / weight)[:, None]).to(x.dtype), mask=(mine < M)[:, None] & real)
        tl.store(u_ptr + heads * C + cols[None, :], head, mask=passes)
