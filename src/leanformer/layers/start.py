"""How new linears start in ViTs and what is put into them."""

from timm.layers import trunc_normal_
from torch import nn


def init_linear(module: nn.Module) -> None:
    """Draw a linear's weight from the truncated normal, its bias being zero; other modules stay as they are.

    >>> layer = nn.Linear(2, 2)
    >>> init_linear(layer)
    >>> layer.bias.tolist()
    [0.0, 0.0]
    """
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
