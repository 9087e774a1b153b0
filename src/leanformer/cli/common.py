"""What several verbs share: how a model and the methods on it are named on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from torch import nn

Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
Models = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL [MODEL ...]")]
Apply = Annotated[tuple[str, ...], tyro.conf.arg(name="apply", metavar="METHOD"), tyro.conf.UseAppendAction]
Against = Annotated[tuple[str, ...], tyro.conf.arg(metavar="SPEC"), tyro.conf.UseAppendAction]
Set = Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE"), tyro.conf.UseAppendAction]
OWN = ("name", "checkpoint")
"""Arguments of `lf.create` that have their own places on the command line."""


def open_model(
    model: str,
    methods: tuple[str, ...] = (),
    checkpoint: Path | None = None,
    arguments: tuple[str, ...] = (),
    fast: bool = False,
) -> nn.Module:
    """A model from a name, a leanformer checkpoint or a hub folder, with methods applied to it.

    Args:
        model: The name, the checkpoint or the folder.
        methods: Methods as the command line writes them; all of them are applied, in this order.
        checkpoint: Weights for a model given by name.
        arguments: Arguments for a model given by name, as name=value.
        fast: Whether a checkpoint of an optimised model is opened in its fast form.

    >>> from leanformer.cli.parser import EXAMPLES
    >>> len(open_model("deit_tiny_patch16_224", (EXAMPLES["tokens"],)).card.methods)
    1
    """
    from ..backbones import create
    from ..core import apply, check_file, parse_method
    from ..speed import load

    chosen = [parse_method(spec) for spec in methods]
    if Path(model).suffix == ".safetensors":
        if checkpoint is not None or arguments:
            raise ValueError(f"{model} says itself how it was built: give no checkpoint and no arguments with it")
        opened = load(model, fast=fast)
    elif Path(model).is_dir() and checkpoint is None and not arguments:
        from ..hub import load_folder

        opened = load_folder(model, fast=fast)
    else:
        if Path(model).suffix and Path(model).is_file():
            raise ValueError(f"{model} is no leanformer checkpoint; give a model's name, and this file as --checkpoint")
        if checkpoint is not None:
            check_file(checkpoint, "the checkpoint ")
        opened = create(model, checkpoint, **parse_arguments(arguments))
    return apply(opened, *chosen) if chosen else opened


def side_by_side(
    models: tuple[str, ...],
    methods: tuple[str, ...],
    against: tuple[str, ...],
    checkpoint: Path | None,
    arguments: tuple[str, ...],
    fused: bool,
) -> dict[str, nn.Module]:
    """The rows of a comparison by name: the models as they are, the first with all the methods on it, and the others.

    Args:
        models: Names or leanformer checkpoints.
        methods: Methods that are put on the first model, all together.
        against: Further rows: methods for the first model, joined by +, or another name or checkpoint.
        checkpoint: Weights for models given by name.
        arguments: Arguments for models given by name, as name=value.
        fused: Whether the models that get methods here are fused.

    >>> from leanformer.cli.parser import EXAMPLES
    >>> both, one = (EXAMPLES["ffn"], EXAMPLES["tokens"]), (EXAMPLES["tokens"],)
    >>> rows = side_by_side(("vit",), both, one, None, ("depth=6",), fused=False)
    >>> [len(model.card.methods) for model in rows.values()]
    [0, 2, 1]
    """
    from ..core import METHODS, fuse

    if not models:
        raise ValueError("give at least one model, by name or as a checkpoint")
    named = {model: open_model(model, (), checkpoint, arguments) for model in models}
    rows = [methods] if methods else []
    for spec in against:
        if spec.partition(":")[0].partition("+")[0].strip() in METHODS:
            rows.append(tuple(part.strip() for part in spec.split("+")))
        else:
            own = Path(spec).suffix == ".safetensors"
            named[spec] = open_model(spec, (), None if own else checkpoint, () if own else arguments)
    for specs in rows:
        model = open_model(models[0], specs, checkpoint, arguments)
        named[f"{models[0]} {'+'.join(specs)}"] = fuse(model, verify=False) if fused else model
    return named


def parse_arguments(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Arguments written as name=value, as a dict.

    Args:
        arguments: What was given with --set.

    >>> parse_arguments(("img_size=384", "global_pool=avg"))
    {'img_size': 384, 'global_pool': 'avg'}
    """
    from ..core import parse_options

    found = parse_options(arguments)
    for name in OWN:
        if name in found:
            raise ValueError(f"--set {name}=…: '{name}' has its own place on the command line")
    return found
