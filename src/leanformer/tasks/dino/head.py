"""The projection head: a small network from a feature to its likeness with each prototype, a cosine.

B images, K prototypes.
"""

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn


class Head(nn.Module):
    """Three layers with GELU to a bottleneck, its direction compared with K prototypes of length one.

    Args:
        channels: Width of the feature.
        prototypes: How many there are.
        hidden: Width of the two inner layers.
        bottleneck: Width of what is compared with the prototypes.
        norm: Whether batch norms follow the two inner layers.

    >>> Head(8, 16, hidden=12, bottleneck=4)(torch.zeros(2, 8)).shape
    torch.Size([2, 16])
    """

    def __init__(self, channels: int, prototypes: int, hidden: int = 2048, bottleneck: int = 256, norm: bool = False):
        super().__init__()
        layers: list[nn.Module] = []
        for width in (channels, hidden):
            layers += [nn.Linear(width, hidden), *([nn.BatchNorm1d(hidden)] if norm else []), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, bottleneck))
        self.prototypes = nn.Parameter(torch.empty(prototypes, bottleneck))
        self.frozen = False
        """Whether the prototypes stay as they are, as in the first epoch."""
        nn.init.uniform_(self.prototypes, -(bottleneck**-0.5), bottleneck**-0.5)  # shorter ones would turn faster
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.prototypes.detach() if self.frozen else self.prototypes
        return F.linear(F.normalize(self.layers(x), dim=-1), F.normalize(weight, dim=-1))  # (B, K)
