"""Where a model's tokens can be read: at its blocks, or, for a model of timm's without them, at its feature levels.

A CNN's maps are planes of tokens. CaiT's blocks see no class token, which joins them later, so that the tokens before
the plane are counted and not asked for.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..core import Grid, Layout, blocks_of, input_of, taps


@dataclass(frozen=True)
class Level:
    """A module of the model, and what it gives out."""

    path: str
    dim: int
    layout: Layout
    grid: Grid | None


def levels_of(model: nn.Module) -> list[Level]:
    """The places where tokens can be read, in the order of depth.

    Args:
        model: one with leanformer blocks, or one of timm's that describes its feature levels, such as a CNN.

    Raises:
        ValueError: for a model that has neither.

    >>> import timm
    >>> [level.path for level in levels_of(timm.create_model("resnet10t"))]
    ['act1', 'layer1', 'layer2', 'layer3', 'layer4']
    """
    blocks = blocks_of(model)
    if blocks:
        return [Level(path, block.dim, block.layout, block.grid) for path, block in blocks.items()]
    levels: Any = getattr(model, "feature_info", None) or []
    described = {level["module"]: level["num_chs"] for level in levels if level.get("module")}
    if not described:
        raise ValueError(f"{type(model).__name__} has neither leanformer blocks nor feature levels to read tokens from")
    return _probed(model, described)


@torch.no_grad()
def _probed(model: nn.Module, described: dict[str, int]) -> list[Level]:
    """What the modules give for one image says how they lay it out."""
    weight = next(model.parameters())
    image = torch.zeros(1, *input_of(model)["input_size"], device=weight.device, dtype=weight.dtype)
    training = model.training
    with taps(model.eval(), described) as seen:
        model(image)
    model.train(training)
    return [_place(model, path, dim, tuple(seen[path].shape)) for path, dim in described.items()]


def _place(model: Any, path: str, dim: int, shape: tuple[int, ...]) -> Level:
    if len(shape) == 4:
        return Level(path, dim, "NCHW" if shape[1] == dim else "NHWC", None)
    height, width = model.patch_embed.grid_size
    return Level(path, dim, "NLC", Grid(shape[1] - height * width, (height, width)))
