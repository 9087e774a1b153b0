"""A mixer-free MetaFormer block in as few passes over memory as there can be.

    u = x + GN₁(x),    y = u + fc2(gelu(fc1(GN₂(u))))

GroupNorm with one group has two statistics an image, so u and GN₂(u) are both affine in x, channel by channel, and
both pairs of statistics follow from Σx and Σx² of each channel: no norm needs a pass of its own. LayerScale is folded
into GN₁ and fc2.

B images, N pixels, C channels (a power of two, or the sum of two), R hidden channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ....layers.products import linear_gelu

Pair = tuple[Tensor, Tensor]


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
    mean, rstd = _moments(s1, s2, count, eps)
    g1, b1, g2, b2 = (t.float() for t in (*norm1, *norm2))
    a1, d1 = 1 + rstd * g1, b1 - mean * rstd * g1
    squares = a1 * a1 * s2 + 2 * a1 * d1 * s1 + pixels * d1 * d1
    mean2, rstd2 = _moments(a1 * s1 + pixels * d1, squares, count, eps)
    return a1, d1, a1 * rstd2 * g2, (d1 - mean2) * rstd2 * g2 + b2


def block_by_products(
    x: Tensor, sums: Tensor, norm1: Pair, norm2: Pair, fc1: Pair, fc2: Pair, eps: float
) -> tuple[Tensor, Tensor]:
    """The block with the two matrix products by the library, for widths where those are at their best."""
    a1, d1, a2, d2 = coefficients(sums, x.shape[1], norm1, norm2, eps)
    h = linear_gelu((x * a2 + d2).to(x.dtype), *fc1)  # (B, N, R)
    y = (x * a1 + d1 + F.linear(h, *fc2)).to(x.dtype)  # (B, N, C)
    return y, channel_sums(y)


def _moments(total: Tensor, squares: Tensor, count: int, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation of each image from its channels' sums, (B, 1, 1) each."""
    mean = total.sum(2, keepdim=True) / count
    return mean, (squares.sum(2, keepdim=True) / count - mean * mean + eps).rsqrt()
