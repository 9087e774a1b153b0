"""The teachers of a study before training: its own backbone, and models of other kinds by their names."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanformer.backbones import create, create_teacher, with_head
from leanformer.core import has_card

from .student import Build

TRAINED_RATE = 1e-4
"""The learning rate of a teacher that starts from trained weights: a higher one would undo them."""


def teacher_from(name: str, checkpoint: Path | None, arguments: Mapping[str, Any]) -> Build:
    """Builds a study's own backbone, from random weights or from trained ones.

    Args:
        name: a leanformer backbone.
        checkpoint: weights to start from, of any image size. Where they know all of the data's classes, as ImageNet's
            know Tiny-ImageNet's, the head keeps their rows; otherwise it is new.
        arguments: those of the backbone.

    >>> teacher_from("vit", None, {"depth": 1})(10).num_classes
    10
    """
    return functools.partial(_from_weights, name, checkpoint, dict(arguments))


def _from_weights(
    name: str, checkpoint: Path | None, arguments: dict[str, Any], num_classes: int, names: Sequence[str] | None = None
) -> nn.Module:
    if checkpoint is None:
        return create(name, **{**arguments, "num_classes": num_classes})
    if has_card(checkpoint):
        raise ValueError(f"{checkpoint} is a leanformer checkpoint, not weights to start from: give it as --teacher")
    model = create(name, checkpoint, resample_positions=True, **arguments)
    return model if model.num_classes == num_classes else with_head(model, num_classes, names)


def teacher_by_name(name: str, arguments: Mapping[str, Any]) -> Build:
    """Builds a model to learn from, at any image size.

    Args:
        name: a leanformer or timm model.
        arguments: those of the model; an image size is told to a CNN too, which has no such argument.

    >>> from leanformer.core import input_of
    >>> input_of(teacher_by_name("resnet10t", {"img_size": 64})(10))["input_size"]
    (3, 64, 64)
    """
    return functools.partial(_build, name, dict(arguments))


def _build(name: str, arguments: dict[str, Any], num_classes: int, names: Sequence[str] | None = None) -> nn.Module:
    size = arguments.get("img_size")
    if size is not None and not _takes_size(name, size):
        del arguments["img_size"]
        arguments["pretrained_cfg_overlay"] = {"input_size": (3, size, size)}
    return create_teacher(name, **arguments, num_classes=num_classes)


@functools.cache
def _takes_size(name: str, size: int) -> bool:
    """Whether a model is built for one image size."""
    try:
        with torch.device("meta"):
            create_teacher(name, img_size=size)
    except ValueError:
        return False
    return True


def apart(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The arguments of a study's own backbone, and those of other models, written as `model.argument`.

    >>> apart({"img_size": 64, "gfnet_h_b.depth": (1, 1, 1, 1)})
    ({'img_size': 64}, {'gfnet_h_b': {'depth': (1, 1, 1, 1)}})
    """
    own: dict[str, Any] = {}
    others: dict[str, dict[str, Any]] = {}
    for key, value in arguments.items():
        model, dot, argument = key.partition(".")
        if dot:
            others.setdefault(model, {})[argument] = value
        else:
            own[key] = value
    return own, others


def teachers_by_name(names: Sequence[str], shared: Mapping[str, Any], own: Mapping[str, dict[str, Any]]) -> Any:
    """Name → how it is built, for several models.

    Args:
        names: the models.
        shared: arguments of all of them.
        own: arguments of single ones, by name.

    Raises:
        ValueError: for arguments of a model that is not among them.
    """
    unknown = sorted(own.keys() - set(names))
    if unknown:
        raise ValueError(f"this study has no teacher '{unknown[0]}'; its others: {', '.join(names)}")
    return {name: teacher_by_name(name, {**shared, **own.get(name, {})}) for name in names}
