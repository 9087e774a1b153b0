"""A convolution of few input channels as one matrix product, with the activation behind it in the same pass.

    y[b, i, j] = act(W · vec(x[b, :, i s : i s + k, j s : j s + k]) + bias)

    W (D, K),  K = k k C rounded up to a multiple of 8

Three colours fill no tile of a matrix unit, and libraries run such convolutions far below their rate. The kernel
gathers the patches of its pixels into a tile of its own; on a CPU they are gathered in memory.

B batch, C channels, D output channels, k kernel, s stride.
"""

import torch.nn.functional as F
from torch import Tensor

from ...layers.kernels import operator

ALIGNED = 8
MOST_OUTPUTS = 128


def weight_of_product(weight: Tensor) -> Tensor:
    """A convolution's weight (D, C, k, k) as that of the product, (D, K), columns in the order of the patches."""
    flat = weight.permute(0, 2, 3, 1).flatten(1)  # (D, k k C)
    return F.pad(flat, (0, -flat.shape[1] % ALIGNED))


def places(side: int, kernel: int, stride: int, padding: int) -> int:
    """How many outputs fit along a side.

    >>> places(224, 3, 2, 1)
    112
    """
    return (side + 2 * padding - kernel) // stride + 1


def _shapes(x, weight, bias, kernel, stride, padding, gelu):
    batch, _, height, width = x.shape
    return x.new_empty(batch, *(places(side, kernel, stride, padding) for side in (height, width)), weight.shape[0])


@operator(f"{__package__}.thin_conv_triton", _shapes)
def thin_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, kernel: int, stride: int, padding: int, gelu: bool
) -> Tensor:
    """(B, C, H, W) → (B, H', W', D), with GELU behind it if asked for; `weight` from `weight_of_product`.

    >>> import torch
    >>> x, weight = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    >>> y = thin_conv(x, weight_of_product(weight), None, 3, 2, 1, False).permute(0, 3, 1, 2)
    >>> torch.allclose(y, F.conv2d(x, weight, stride=2, padding=1), atol=1e-5)
    True
    """
    x = F.pad(x, (padding,) * 4)
    patches = x.unfold(2, kernel, stride).unfold(3, kernel, stride)  # (B, C, H', W', k, k)
    rows = patches.permute(0, 2, 3, 4, 5, 1).flatten(3)  # (B, H', W', k k C)
    rows = F.pad(rows, (0, weight.shape[1] - rows.shape[3]))
    y = F.linear(rows, weight, bias)  # (B, H', W', D)
    return F.gelu(y) if gelu else y
