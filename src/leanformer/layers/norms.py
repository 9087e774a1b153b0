"""Normalisations by name, for maps with channels first (NCHW) and last (NHWC).

    modified   statistics over all of (H, W, C), scale and shift by channel: GroupNorm with one group
    layer      statistics over C alone, at each place
    batch      statistics of the data set, by channel
    none       nothing

B batch, H x W places, C channels.
"""

import copy
from typing import Any

import torch
from timm.layers import GroupNorm1, LayerNorm, LayerNorm2d
from timm.models.metaformer import GroupNorm1NoBias, LayerNorm2dNoBias
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

NORMS = ("modified", "layer", "batch", "none")


def plain_layer_norm(norm: nn.Module) -> bool:
    """Whether a norm is a LayerNorm over the channels with a scale, so that a kernel can take it over.

    >>> plain_layer_norm(nn.LayerNorm(8)), plain_layer_norm(nn.LayerNorm((4, 8))), plain_layer_norm(nn.Identity())
    (True, False, False)
    """
    known = type(norm) in (nn.LayerNorm, LayerNorm)
    return known and len(norm.normalized_shape) == 1 and norm.weight is not None  # type: ignore[arg-type]


class PlaneNorm(nn.Module):
    """The modified LayerNorm for channels last: one mean and variance for each image, scale (and shift) by channel.

    >>> PlaneNorm(8, bias=False)(torch.randn(2, 4, 4, 8)).shape
    torch.Size([2, 4, 4, 8])
    """

    def __init__(self, dim: int, eps: float = 1e-6, bias: bool = True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x, x.shape[1:], eps=self.eps) * self.weight
        return x if self.bias is None else x + self.bias

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps}, bias={self.bias is not None}"


class BatchNormLast(nn.BatchNorm1d):
    """Batch normalisation for channels last: (B, ..., C) in and out.

    >>> BatchNormLast(8)(torch.randn(2, 4, 4, 8)).shape
    torch.Size([2, 4, 4, 8])
    """

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(0, -2)).view(input.shape)


def make_norm(name: str, dim: int, layout: str = "NCHW", eps: float = 1e-5, bias: bool = True) -> nn.Module:
    """The normalisation called `name` for maps of `dim` channels.

    >>> make_norm("layer", 8, "NHWC", eps=1e-6, bias=False)
    LayerNorm((8,), eps=1e-06, elementwise_affine=True, bias=False)
    """
    if name not in NORMS:
        raise ValueError(f"unknown norm '{name}'; known: {', '.join(NORMS)}")
    first = layout == "NCHW"
    if name == "none":
        return nn.Identity()
    if name == "batch":
        return nn.BatchNorm2d(dim, eps=eps) if first else BatchNormLast(dim, eps=eps)
    if name == "layer":
        if first:
            return LayerNorm2d(dim, eps=eps) if bias else LayerNorm2dNoBias(dim, eps=eps)
        return nn.LayerNorm(dim, eps=eps, bias=bias)
    if first:
        return GroupNorm1(dim, eps=eps) if bias else GroupNorm1NoBias(dim, eps=eps)
    return PlaneNorm(dim, eps=eps, bias=bias)


@torch.no_grad()
def absorbed(layer: nn.Linear | nn.Conv2d, scale: Tensor, shift: Tensor) -> nn.Linear | nn.Conv2d:
    """The linear, or 1 x 1 convolution, behind x → scale · x + shift, in one: W (s x + t) + b.

    >>> absorbed(nn.Linear(2, 3, bias=False), torch.ones(2), torch.zeros(2)).bias
    Parameter containing:
    tensor([0., 0., 0.], requires_grad=True)
    """
    new, weight = copy.deepcopy(layer), layer.weight.flatten(1)  # (out, C)
    bias = weight @ shift if layer.bias is None else layer.bias + weight @ shift
    new.weight = nn.Parameter((weight * scale).view(layer.weight.shape))
    new.bias = nn.Parameter(bias)
    return new


def affine_of(norm: Any) -> tuple[Tensor, Tensor]:
    """Scale and shift that a batch norm, synchronised or not, applies in evaluation."""
    assert isinstance(norm, _BatchNorm), norm
    mean, var = norm.running_mean, norm.running_var
    assert mean is not None
    assert var is not None
    scale = norm.weight / torch.sqrt(var + norm.eps)  # (C,)
    return scale, norm.bias - mean * scale
