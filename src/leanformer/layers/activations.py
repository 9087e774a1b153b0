"""Activations by name, those of the MetaFormer papers among them.

StarReLU(x) = s * relu(x)^2 + b        s and b are learned scalars, 1 and 0 at the start as in the released code

star_relu_normal starts them at 0.8944 and -0.4472, the paper's derivation: then a standard normal x gives outputs of
mean 0 and variance 1.

SquaredReLU(x) = relu(x)^2
"""

from typing import Any

from timm.models.metaformer import SquaredReLU, StarReLU
from torch import nn


class NormalStarReLU(StarReLU):
    """StarReLU that begins with outputs of mean 0 and variance 1 for standard normal inputs."""

    def __init__(self, **arguments: Any):
        super().__init__(**{"scale_value": 0.8944, "bias_value": -0.4472, **arguments})


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "squared_relu": SquaredReLU,
    "star_relu": StarReLU,
    "star_relu_normal": NormalStarReLU,
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
