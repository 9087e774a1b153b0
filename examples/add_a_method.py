"""A whole new method in one file: a learnt gain per channel on what a norm hands to the token mixer.

    training    branch(x) = x + fn(g · norm(x))
    fused       branch(x) = x + fn(norm'(x))         norm'(x) = (g · w) x̂ + g · b: the gain costs nothing

A model is a row of blocks, and a block has three slots: `pre` (the seam before it), `mix` (the token mixer) and `ffn`
(the channel MLP). A method needs two things:

1. A module for the slot. Here it is a `Branch`, which is how `mix` and `ffn` look in every adopted backbone:
   skip(x) + drop(scale(fn(norm(x)))). A module that knows a smaller equal form gives it in `fused()`; `lf.fuse` puts
   it in, and compares the outputs of the whole model in float64.
2. A `Method`: a frozen dataclass of options. `swaps` says which slots get which module, `off` is the setting that
   changes nothing. The name in the class line is the one that cards, checkpoints and the command line use.

Everything else follows: `apply` with other methods in any order, training and distillation, save and load, export.
A method of your own serves every program that imports its file. To become part of the package the file goes into
src/leanformer/methods, with one line in `__init__.py` there; the tests in tests/contract then hold it to the rules that
all methods keep, on every family of backbones.

    python examples/add_a_method.py

B batch, N tokens, C channels, H x W the plane of patches.
"""

import copy
import dataclasses
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import Build, select

AFFINE = ("weight", "bias", "alpha", "beta")
"""What norms call their parameters."""


class GainBranch(lf.Branch):
    """A branch whose norm is followed by a gain per channel."""

    def __init__(self, gain: nn.Parameter, **parts: Any):
        super().__init__(**parts)
        self.gain = gain

    def gained(self, x: Tensor) -> Tensor:
        """What the token mixer sees."""
        return self.norm(x) * self.gain  # (B, N, C), or (B, C, H, W) with a gain of (C, 1, 1)

    def residual(self, x: Tensor, **mask: Any) -> Tensor:
        return self.scaled(self.fn(self.gained(x), **mask))

    def fused(self) -> lf.Branch:
        """The same function without a gain: it is folded into the norm's weight and bias."""
        norm = copy.deepcopy(self.norm)
        for name, parameter in norm.named_parameters():
            if name in AFFINE:
                parameter.data = parameter.data * self.gain.data.reshape(parameter.shape)
        return lf.Branch(**{**copy.deepcopy(self.parts()), "norm": norm})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gain(lf.Method, name="gain"):
    """A gain that starts at 1 + strength, on the norm of the token mixer of the chosen blocks."""

    module: ClassVar[type[GainBranch]] = GainBranch

    strength: float = 0.1
    """How far the gain starts from 1, between -1 and 1."""
    blocks: tuple[int, ...] | None = (0,)
    """Blocks, counted from 0; None for all."""

    def __post_init__(self) -> None:
        super().__post_init__()  # options of another type are refused
        if not -1 < self.strength < 1:
            raise ValueError(f"strength must lie between -1 and 1, got {self.strength}")

    def swaps(self, model: nn.Module) -> dict[str, Build]:
        places = select(model, "mix", self.blocks)  # refuses blocks that the model does not have
        return {path: partial(self._build, shape=gain_shape(b.layout, b.dim)) for path, b in places.items()}

    def off(self) -> Self:
        return self.replace(strength=0.0)

    def _build(self, old: nn.Module, shape: tuple[int, ...]) -> nn.Module:
        """The new module around the parts of the old one, whose trained weights it keeps."""
        assert isinstance(old, lf.Branch)
        return self.module(nn.Parameter(torch.ones(shape) + self.strength), **old.parts())


def gain_shape(layout: str, dim: int) -> tuple[int, ...]:
    """The shape of a gain per channel, where channels come last or before the plane."""
    return (dim, 1, 1) if layout == "NCHW" else (dim,)


def main() -> None:
    """Put the method beside another one onto a small ViT, fuse, and show what came out."""
    backbone = lf.create("deit_tiny_patch16_224", img_size=64, embed_dim=64, depth=4, num_heads=2)
    model = lf.apply(backbone, Gain(strength=0.2), lf.EViT(keep_rate=0.7))
    fast = lf.fuse(model)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        drift = (fast(images) - model.eval()(images)).abs().max().item()
    print(lf.describe(fast))
    print(f"fused, the outputs differ by {drift:.1e}")


if __name__ == "__main__":
    main()
