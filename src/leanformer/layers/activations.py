"""Activations by name, those of the MetaFormer papers among them.

StarReLU(x) = s * relu(x)^2 + b        s and b are learned scalars, 1 and 0 at the start
SquaredReLU(x) = relu(x)^2
"""

from timm.models.metaformer import SquaredReLU, StarReLU
from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "squared_relu": SquaredReLU,
    "star_relu": StarReLU,
    "identity": nn.Identity,
}


def activation(name: str) -> type[nn.Module]:
    """The class of the activation called `name`.

    >>> activation("gelu")()
    GELU(approximate='none')
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation '{name}'; known: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]
