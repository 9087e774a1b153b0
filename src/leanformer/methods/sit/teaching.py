"""Where a teacher's tokens are read: at its blocks, or, for a model of timm's without them, at its feature levels.

A CNN's maps are planes of tokens. CaiT's blocks see no class token, which joins them later, so that the tokens before
the plane are counted and not asked for.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...core import Grid, Layout, blocks_of, input_of, taps


@dataclass(frozen=True)
class Place:
    """A module of the teacher, and what it gives out."""

    path: str
    dim: int
    layout: Layout
    grid: Grid | None


def places_of(teacher: nn.Module) -> list[Place]:
    """The places to learn tokens from, in the order of depth.

    Args:
        teacher: a model with leanformer blocks, or one of timm's that describes its feature levels, such as a CNN.

    Raises:
        ValueError: for a model that has neither.

    >>> import timm
    >>> [place.path for place in places_of(timm.create_model("resnet10t"))]
    ['act1', 'layer1', 'layer2', 'layer3', 'layer4']
    """
    blocks = blocks_of(teacher)
    if blocks:
        return [Place(path, block.dim, block.layout, block.grid) for path, block in blocks.items()]
    levels: Any = getattr(teacher, "feature_info", None) or []
    described = {level["module"]: level["num_chs"] for level in levels if level.get("module")}
    if not described:
        raise ValueError(
            f"{type(teacher).__name__} has neither leanformer blocks nor feature levels to learn tokens from; "
            "learn from its logits alone with lambda_token=0"
        )
    return _probed(teacher, described)


@torch.no_grad()
def _probed(teacher: nn.Module, described: dict[str, int]) -> list[Place]:
    """What the modules give for one image says how they lay it out."""
    weight = next(teacher.parameters())
    image = torch.zeros(1, *input_of(teacher)["input_size"], device=weight.device, dtype=weight.dtype)
    training = teacher.training
    with taps(teacher.eval(), described) as seen:
        teacher(image)
    teacher.train(training)
    return [_place(teacher, path, dim, tuple(seen[path].shape)) for path, dim in described.items()]


def _place(teacher: Any, path: str, dim: int, shape: tuple[int, ...]) -> Place:
    if len(shape) == 4:
        return Place(path, dim, "NCHW" if shape[1] == dim else "NHWC", None)
    height, width = teacher.patch_embed.grid_size
    return Place(path, dim, "NLC", Grid(shape[1] - height * width, (height, width)))
