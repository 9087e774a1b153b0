"""leanformer train --task dino: pre-training without labels, new or resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import open_model, parse_arguments

if TYPE_CHECKING:
    from torch import nn

    from ..papers.recipes import Published
    from ..settings import Settings
    from ..train import Result

MADE = {"num_classes": "0", "dynamic_img_size": "True"}
"""Arguments that a backbone is created with unless others are given: no classifier, and images of any size."""


def is_dino(task: str) -> bool:
    """Whether a task as the command line or a run folder writes it is DINO.

    >>> is_dino("dino:prototypes=256"), is_dino("cross_entropy + soft")
    (True, False)
    """
    return task.partition(":")[0].strip() == "dino"


def pre_train(
    model: str | None,
    published: Published | None,
    task: str,
    recipe: str,
    data: str,
    output: Path,
    *,
    val: str | None,
    methods: tuple[str, ...],
    checkpoint: Path | None,
    arguments: tuple[str, ...],
    settings: Settings,
    refused: dict[str, Any],
) -> Result:
    """Pre-train a backbone as `leanformer train` was asked to.

    Args:
        model: A model's name or a leanformer checkpoint; None: the recipe's.
        published: The published recipe, if it is one.
        task: DINO's settings as dino:setting=value.
        recipe: The recipe as the command line writes it.
        data: Images to learn from.
        output: The run folder.
        val: Labelled images to judge the features on.
        methods: Methods as the command line writes them.
        checkpoint: Weights for a model given by name.
        arguments: Arguments of the model as name=value.
        settings: How the run is carried out.
        refused: Options that DINO has no use for, with what was given.
    """
    from ..core import apply, parse_method
    from ..papers.recipes import parse_recipe
    from ..tasks import dino

    for name, value in refused.items():
        if value:
            raise ValueError(f"--task dino learns from crops alone, so it has no --{name}")
    config = dino.Config()
    for text in (published.task if published else "", task):
        config = config.with_text(text) if is_dino(text) else config
    start = _backbone(model, published, checkpoint, arguments)
    given = tuple(parse_method(spec) for spec in methods)
    student = published.student(start, given) if published else apply(start, *given)
    return dino.fit(
        student, recipe=parse_recipe(recipe), data=data, val=val, dino=config, output=output, settings=settings
    )


def resume_pre_training(folder: Path, run: dict[str, Any], settings: Settings) -> Result:
    """Let a run go on as if it had never stopped.

    Args:
        folder: Its folder.
        run: What `train.read_run` told of it.
        settings: How it is carried out.
    """
    from ..backbones import load
    from ..tasks import dino
    from ..train import Recipe

    config = dino.Config().with_text(run["objective"])
    return dino.fit(
        load(folder / "student.safetensors"), recipe=Recipe.from_json(run["recipe"]), data=run["data"]["train"],
        val=run["data"].get("val"), dino=config, output=folder, resume=True, settings=settings,
    )  # fmt: skip


def _backbone(
    model: str | None, published: Published | None, checkpoint: Path | None, arguments: tuple[str, ...]
) -> nn.Module:
    """The backbone before the methods: without a classifier, for images of any size where it can be."""
    from ..backbones import with_head

    if model is None and published is None:
        raise ValueError("name a model, or a published recipe that brings one: leanformer recipes 'dino*' lists them")
    if model is not None and Path(model).suffix == ".safetensors":
        return with_head(open_model(model, (), checkpoint, arguments), 0)
    given = parse_arguments(arguments)
    own = published.argument_texts() if model is None and published else ()
    own = tuple(text for text in own if text.partition("=")[0] not in given)
    told = {text.partition("=")[0] for text in (*own, *arguments)}
    name = model if model is not None else published.model  # type: ignore[union-attr]
    for left in (MADE, {"num_classes": "0"}):  # not every family knows images of any size
        made = tuple(f"{key}={value}" for key, value in left.items() if key not in told)
        try:
            return open_model(name, (), checkpoint, (*own, *arguments, *made))
        except ValueError:
            if left is not MADE:
                raise
    raise AssertionError("one of the two was returned or has raised")
