"""A mixer-free MetaFormer block in as few passes over memory as there can be.

    u = x + GN₁(x),    y = u + fc2(gelu(fc1(GN₂(u))))

GroupNorm with one group has two statistics an image, so u and GN₂(u) are both affine in x, channel by channel, and
both pairs of statistics follow from Σx and Σx² of each channel: no norm needs a pass of its own. LayerScale is folded
into GN₁ and fc2. Where the FFN is three products of u instead (its norm and its residual inside them),

    u = x + GN₁(x),    y = gelu(u W_inᵀ + b_in) W_outᵀ + u Wᵀ + b

the same holds for u alone.

B images, N pixels, C channels, R hidden channels. What one kernel takes of these says `one_pass_takes`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ....layers.products import linear_gelu, three_products

Pair = tuple[Tensor, Tensor]
ONE_PASS_WIDTH = 192
"""Up to this width a block runs as one kernel; above, matrix products by the library are faster."""
LEAST = 16
"""The fewest channels that a kernel multiplies at a time."""


def one_pass_takes(channels: int, hidden: int) -> bool:
    """Whether one kernel computes a block of so many channels and hidden channels, and is the faster way.

    >>> one_pass_takes(96, 384), one_pass_takes(24, 96), one_pass_takes(64, 24), one_pass_takes(320, 1280)
    (True, False, False, False)
    """
    low, high = halves(channels)
    whole = low >= LEAST and (not high or (high >= LEAST and high == whole_chunk(high)))
    return whole and channels <= ONE_PASS_WIDTH and hidden % LEAST == 0


def in_one_pass(x: Tensor, takes: bool) -> bool:
    """Whether a block runs as one kernel on x: in half precision on a GPU, if the kernel takes its shape.

    float32 is multiplied without the matrix units, where the library wins; and its programs outgrow a chip's memory.

    >>> in_one_pass(torch.zeros(1, 4, 64), takes=True)
    False
    """
    return takes and x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


def halves(channels: int) -> tuple[int, int]:
    """`channels` as the largest power of two in it and the rest; blocks of a kernel come in powers of two only.

    >>> halves(64), halves(96), halves(320)
    ((64, 0), (64, 32), (256, 64))
    """
    low = 1 << (channels.bit_length() - 1)
    return low, channels - low


def whole_chunk(channels: int) -> int:
    """The largest power of two that divides `channels`: a kernel takes whole chunks of hidden channels.

    >>> whole_chunk(96), whole_chunk(64)
    (32, 64)
    """
    return channels & -channels


def channel_sums(x: Tensor) -> Tensor:
    """Σx and Σx² of every channel of every image: (B, N, C) → (B, 2, C) in float32.

    >>> channel_sums(torch.ones(1, 4, 2))
    tensor([[[4., 4.],
             [4., 4.]]])
    """
    wide = x.float()
    return torch.stack([wide.sum(1), wide.square().sum(1)], dim=1)


def coefficients(sums: Tensor, pixels: int, norm1: Pair, norm2: Pair, eps: float) -> tuple[Tensor, ...]:
    """a₁, d₁, a₂, d₂ of u = a₁ x + d₁ and GN₂(u) = a₂ x + d₂, each (B, 1, C), from the channel sums of x."""
    s1, s2 = sums[:, :1], sums[:, 1:]  # (B, 1, C)
    count = pixels * sums.shape[2]
    a1, d1 = first_coefficients(sums, pixels, norm1, eps)
    g2, b2 = (t.float() for t in norm2)
    squares = a1 * a1 * s2 + 2 * a1 * d1 * s1 + pixels * d1 * d1
    mean2, rstd2 = _moments(a1 * s1 + pixels * d1, squares, count, eps)
    return a1, d1, a1 * rstd2 * g2, (d1 - mean2) * rstd2 * g2 + b2


def first_coefficients(sums: Tensor, pixels: int, norm1: Pair, eps: float) -> Pair:
    """a₁ and d₁ of u = a₁ x + d₁, each (B, 1, C), from the channel sums of x."""
    mean, rstd = _moments(sums[:, :1], sums[:, 1:], pixels * sums.shape[2], eps)
    g1, b1 = (t.float() for t in norm1)
    return 1 + rstd * g1, b1 - mean * rstd * g1


def path_block_by_products(x: Tensor, sums: Tensor, norm1: Pair, weights: list[Tensor], eps: float) -> Pair:
    """The block whose FFN is three products, by the library; `weights` are W, b, W_in, b_in, W_out."""
    a1, d1 = first_coefficients(sums, x.shape[1], norm1, eps)
    y = three_products((x * a1 + d1).to(x.dtype), *weights)  # (B, N, C)
    return y, channel_sums(y)


def block_by_products(
    x: Tensor, sums: Tensor, norm1: Pair, norm2: Pair, fc1: Pair, fc2: Pair, eps: float
) -> tuple[Tensor, Tensor]:
    """The block with the two matrix products by the library, for widths where those are at their best."""
    a1, d1, a2, d2 = coefficients(sums, x.shape[1], norm1, norm2, eps)
    h = linear_gelu((x * a2 + d2).to(x.dtype), *fc1)  # (B, N, R)
    y = (x * a1 + d1 + F.linear(h, *fc2)).to(x.dtype)  # (B, N, C)
    return y, channel_sums(y)


def _moments(total: Tensor, squares: Tensor, count: int, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation of each image from its channels' sums, (B, 1, 1) each.

    Where nearly all of x is its mean, rounding may make the variance less than nothing.
    """
    mean = total.sum(2, keepdim=True) / count
    return mean, ((squares.sum(2, keepdim=True) / count - mean * mean).clamp(min=0) + eps).rsqrt()
