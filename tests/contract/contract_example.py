"""The smallest whole method: a learnt gain on what a norm gives to its branch, which fuse folds into the norm.

    branch(x) = skip(x) + fn(g · norm(x))          fused: g · norm(x) = (g · w) x̂ + g · b

It serves as the contract suite's example; `contract_broken` breaks it in every way that the suite must notice.
"""

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from leanformer.core import METHODS, Branch, Method, select

AFFINE = ("weight", "bias", "alpha", "beta")


class GainBranch(Branch):
    """A branch whose norm is followed by a gain per channel."""

    def __init__(self, gain: nn.Parameter, **parts: Any):
        super().__init__(**parts)
        self.gain = gain

    def gained(self, x: Tensor) -> Tensor:
        return self.norm(x) * self.gain

    def residual(self, x: Tensor, **mask: Any) -> Tensor:
        y = self.fn(self.gained(x), **mask)
        return self.scale(self.drop(y)) if self.scale_last else self.drop(self.scale(y))

    def fused(self) -> Branch:
        norm = copy.deepcopy(self.norm)
        for name, parameter in norm.named_parameters():
            if name in AFFINE:
                parameter.data = parameter.data * self.gain.data.reshape(parameter.shape)
        return Branch(**{**copy.deepcopy(self.parts()), "norm": norm})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gain(Method, name="gain"):
    """A gain of 1 + strength on the norm of the token mixer of the chosen blocks."""

    module: ClassVar[type[GainBranch]] = GainBranch

    strength: float = 0.1
    blocks: tuple[int, ...] | None = (0,)

    def __post_init__(self) -> None:
        if not -1 < self.strength < 1:
            raise ValueError(f"strength must lie between -1 and 1, got {self.strength}")

    def swaps(self, model: nn.Module) -> dict[str, Any]:
        places = select(model, "mix", self.blocks)
        return {path: partial(self._build, shape=_shape(b.layout, b.dim)) for path, b in places.items()}

    def off(self) -> Self:
        return self.replace(strength=0.0)

    def _build(self, old: nn.Module, shape: tuple[int, ...]) -> nn.Module:
        assert isinstance(old, Branch)
        return self.module(nn.Parameter(torch.ones(shape) + self.strength), **old.parts())


def _shape(layout: str, dim: int) -> tuple[int, ...]:
    return (dim, 1, 1) if layout == "NCHW" else (dim,)


METHODS.pop("gain")  # known within the contract tests alone


@contextmanager
def known(*methods: type[Method]) -> Iterator[None]:
    """Within the context the methods stand in METHODS, as if the package had them."""
    METHODS.update({method.name: method for method in methods})
    try:
        yield
    finally:
        for method in methods:
            METHODS.pop(method.name, None)
