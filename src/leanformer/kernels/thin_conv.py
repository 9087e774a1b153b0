"""A convolution of few input channels as one matrix product over gathered patches.

    y[b, i, j] = W · vec(x[b, :, i s : i s + k, j s : j s + k]) + bias

    W (D, K),  K = k k C rounded up to a multiple of 8

Three colours fill no tile of a matrix unit, and libraries run such convolutions far below their rate. Gathered, the
patches are rows of K numbers; the zeros that round K up keep the rows aligned.

B batch, C channels, D output channels, k kernel, s stride.
"""

import torch.nn.functional as F
from torch import Tensor

ALIGNED = 8


def weight_of_product(weight: Tensor) -> Tensor:
    """A convolution's weight (D, C, k, k) as that of the product, (D, K), columns in the order of the patches."""
    flat = weight.permute(0, 2, 3, 1).flatten(1)  # (D, k k C)
    return F.pad(flat, (0, -flat.shape[1] % ALIGNED))


def conv_by_product(x: Tensor, weight: Tensor, bias: Tensor | None, kernel: int, stride: int, padding: int) -> Tensor:
    """(B, C, H, W) → (B, D, H', W') with channels last in memory; `weight` from `weight_of_product`.

    >>> import torch
    >>> x, weight = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    >>> y = conv_by_product(x, weight_of_product(weight), None, 3, 2, 1)
    >>> torch.allclose(y, F.conv2d(x, weight, stride=2, padding=1), atol=1e-5)
    True
    """
    x = F.pad(x, (padding,) * 4)
    patches = x.unfold(2, kernel, stride).unfold(3, kernel, stride)  # (B, C, H', W', k, k)
    rows = patches.permute(0, 2, 3, 4, 5, 1).flatten(3)  # (B, H', W', k k C)
    rows = F.pad(rows, (0, weight.shape[1] - rows.shape[3]))
    return F.linear(rows, weight, bias).permute(0, 3, 1, 2)
