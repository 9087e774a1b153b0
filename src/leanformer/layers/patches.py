"""Convolutions whose patches do not overlap, as one matrix product: libraries run them as general ones, far slower.

y[b, i, j] = W · vec(x[b, :, i p : (i + 1) p, j p : (j + 1) p]) + bias          W (D, C p p)
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def disjoint(module: Any) -> bool:
    """Whether a module is a plain convolution whose patches lie side by side.

    >>> disjoint(nn.Conv2d(3, 8, 4, 4)), disjoint(nn.Conv2d(3, 8, 4, 2))
    (True, False)
    """
    if type(module) is not nn.Conv2d or module.groups != 1 or module.kernel_size == (1, 1):
        return False
    plain = module.padding in ((0, 0), "valid") and module.dilation == (1, 1)
    return plain and module.kernel_size == module.stride


def patch_product(x: Tensor, weight: Tensor, bias: Tensor | None, patch: tuple[int, ...]) -> Tensor:
    """The product of all patches with weight (D, C p p): (B, C, H, W) → (B, D, H / p, W / p).

    >>> import torch
    >>> conv, x = nn.Conv2d(3, 8, 4, 4), torch.randn(2, 3, 9, 8)
    >>> torch.allclose(patch_product(x, conv.weight.flatten(1), conv.bias, (4, 4)), conv(x), atol=1e-5)
    True
    """
    batch, chans, height, width = x.shape
    high, wide = height // patch[0], width // patch[1]
    x = x[:, :, : high * patch[0], : wide * patch[1]]
    x = x.reshape(batch, chans, high, patch[0], wide, patch[1]).permute(0, 2, 4, 1, 3, 5)
    return F.linear(x.flatten(3), weight, bias).permute(0, 3, 1, 2)  # (B, D, H/p, W/p)
