"""leanformer train --task dino: pre-training without labels, new or resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import open_model, parse_arguments
from .train_dense import Dense

if TYPE_CHECKING:
    from torch import nn

    from ..papers.recipes import Published
    from ..tasks.dino import Config

MADE = {"num_classes": "0", "dynamic_img_size": "True"}
"""Arguments that a backbone is created with unless others are given: no classifier, and images of any size."""


def is_dino(task: str) -> bool:
    """Whether a task as the command line or a run folder writes it is DINO.

    >>> is_dino("dino:prototypes=256"), is_dino("cross_entropy + soft")
    (True, False)
    """
    return task.partition(":")[0].strip() == "dino"


def dino_config(published: Published | None, task: str, unused: dict[str, Any]) -> Config:
    """DINO's settings: the published recipe's, but for those that the command line gives.

    Args:
        published: The published recipe, if it is one.
        task: What was given as --task.
        unused: Options that DINO has no use for, with what was given: they are refused.
    """
    from ..tasks.dino import Config

    for name, value in unused.items():
        if value:
            raise ValueError(f"--task dino learns from crops alone, so it has no --{name}")
    config = Config()
    for text in (published.task if published else "", task):
        config = config.with_text(text) if is_dino(text) else config
    return config


def with_own(published: Published, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments of a published recipe's model and those given, which count more.

    Args:
        published: The recipe.
        arguments: What was given with --set.
    """
    given = parse_arguments(arguments)
    return (*(text for text in published.argument_texts() if text.partition("=")[0] not in given), *arguments)


def backbone(
    model: str | None, published: Published | None, checkpoint: Path | None, arguments: tuple[str, ...]
) -> nn.Module:
    """The backbone before the methods: without a classifier, for images of any size where it can be.

    Args:
        model: A model's name or a leanformer checkpoint; None: the recipe's.
        published: The published recipe, if it is one.
        checkpoint: Weights for a model given by name.
        arguments: What was given with --set.
    """
    from ..backbones import with_head

    if model is None and published is None:
        raise ValueError("name a model, or a published recipe that brings one: leanformer recipes 'dino*' lists them")
    if model is not None and Path(model).suffix == ".safetensors":
        opened = open_model(model, (), checkpoint, arguments)
        if Dense.of(opened) is not None:
            raise ValueError(f"--task dino trains a backbone; {model} is a {type(opened).__name__}")
        return with_head(opened, 0)
    if model is None and published is not None:
        model, arguments = published.model, with_own(published, arguments)
    told = parse_arguments(arguments)
    for left in (MADE, {"num_classes": "0"}):  # not every family knows images of any size
        made = tuple(f"{key}={value}" for key, value in left.items() if key not in told)
        try:
            return open_model(str(model), (), checkpoint, (*arguments, *made))
        except ValueError:
            if left is not MADE:
                raise
    raise AssertionError("one of the two was returned or has raised")
