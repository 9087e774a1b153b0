"""Modules that compute what others do, laid out for speed. All are for inference; all take over trained weights."""

from typing import Any

from torch import Tensor, nn

from ..layers.patches import patch_product
from ..layers.products import linear_gelu
from .kernels.pool import pool_in_one_pass
from .kernels.thin_conv import thin_conv, weight_of_product


class PatchProduct(nn.Module):
    """A convolution whose patches do not overlap, as one matrix product: (B, C, H, W) → (B, D, H / p, W / p).

    >>> import torch
    >>> conv = nn.Conv2d(3, 8, 4, 4)
    >>> x = torch.randn(2, 3, 8, 8)
    >>> torch.allclose(PatchProduct(conv)(x), conv(x), atol=1e-5)
    True
    """

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        self.patch = conv.kernel_size
        self.weight = nn.Parameter(conv.weight.detach().flatten(1).clone())  # (D, C p p)
        self.bias = None if conv.bias is None else nn.Parameter(conv.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return patch_product(x, self.weight, self.bias, self.patch)


class ThinConv(nn.Module):
    """A convolution of few input channels, with GELU behind it if asked for: (B, C, H, W) → (B, D, H', W').

    >>> import torch
    >>> conv = nn.Conv2d(3, 8, 3, 2, 1)
    >>> x = torch.randn(2, 3, 8, 8)
    >>> torch.allclose(ThinConv(conv)(x), conv(x), atol=1e-5)
    True
    """

    def __init__(self, conv: nn.Conv2d, gelu: bool = False):
        super().__init__()
        self.shape = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
        self.gelu = gelu
        self.weight = nn.Parameter(weight_of_product(conv.weight.detach()).clone())  # (D, K)
        self.bias = None if conv.bias is None else nn.Parameter(conv.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return thin_conv(x, self.weight, self.bias, *self.shape, self.gelu).permute(0, 3, 1, 2)


class GeluMlp(nn.Module):
    """fc2(gelu(fc1(x))) with the activation in the first product's epilogue."""

    def __init__(self, fc1: nn.Linear, fc2: nn.Linear):
        super().__init__()
        self.fc1, self.fc2 = fc1, fc2

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(linear_gelu(x, self.fc1.weight, self.fc1.bias))


class PooledBranch(nn.Module):
    """PoolFormer's first branch, `x + s (pool(z) − z)` of z = GN(x), over a map (B, C, H, W): z is never made."""

    def __init__(self, branch: Any):
        super().__init__()
        gain = branch.norm.weight.detach().double()
        scale = getattr(branch.scale, "gamma", None)
        self.gain = nn.Parameter((gain if scale is None else gain * scale.detach().double()).to(branch.norm.weight))
        self.eps = branch.norm.eps

    def forward(self, x: Tensor) -> Tensor:
        rows = x.permute(0, 2, 3, 1).contiguous()  # (B, H, W, C)
        return pool_in_one_pass(rows, self.gain, self.eps).permute(0, 3, 1, 2)
