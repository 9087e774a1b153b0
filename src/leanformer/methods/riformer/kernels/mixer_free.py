"""A mixer-free MetaFormer block in as few passes over memory as there can be.

    u = x + GN₁(x),    y = u + fc2(gelu(fc1(GN₂(u))))

GroupNorm with one group has two statistics an image, so u and GN₂(u) are both affine in x, channel by channel, and
both pairs of statistics follow from Σx and Σx² of each channel: no norm needs a pass of its own. LayerScale is folded
into GN₁ and fc2. Where the FFN is three products of u instead (its norm and its residual inside them),

    u = x + GN₁(x),    y = gelu(u W_inᵀ + b_in) W_outᵀ + u Wᵀ + b

the same holds for u alone.

B images, N pixels, C channels (a power of two, or the sum of two), R hidden channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ....layers.products import linear_gelu, three_products

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
    """Mean and reciprocal deviation of each image from its channels' sums, (B, 1, 1) each."""
    mean = total.sum(2, keepdim=True) / count
    return mean, (squares.sum(2, keepdim=True) / count - mean * mean + eps).rsqrt()
