"""A residual branch whose norm is a batch norm: in evaluation an affine map s x + t, which the branch swallows.

    pooling   γ (pool(s x + t) − (s x + t)) = γ s (pool(x) − x)         into the LayerScale; t is gone
    MLP       W (s x + t) + b = (W s) x + (W t + b)                      into the first layer

γ LayerScale, W and b the MLP's first layer, s and t by channel.
"""

import copy

import torch
from timm.layers import LayerScale, LayerScale2d, Mlp
from torch import Tensor, nn

from ..core import Branch
from ..layers.mixers import Pooling
from ..layers.norms import absorbed, affine_of


class BatchNormBranch(Branch):
    """A branch around pooling or an MLP behind a batch norm.

    >>> BatchNormBranch(nn.BatchNorm2d(8), Pooling(3, layout="NCHW")).fused().norm
    Identity()
    """

    @torch.no_grad()
    def fused(self) -> Branch:
        scale, shift = affine_of(self.norm)
        parts = copy.deepcopy(self.parts())
        if isinstance(self.fn, Pooling):
            parts["scale"] = _layer_scale(self.scale, scale, self.fn.layout)
        else:
            assert isinstance(self.fn, Mlp)
            parts["fn"].fc1 = absorbed(parts["fn"].fc1, scale, shift)
        return Branch(**{**parts, "norm": nn.Identity()})


def _layer_scale(old: nn.Module, scale: Tensor, layout: str) -> nn.Module:
    new = (LayerScale2d if layout == "NCHW" else LayerScale)(scale.numel())
    new.gamma = nn.Parameter(scale * getattr(old, "gamma", 1.0))
    return new
