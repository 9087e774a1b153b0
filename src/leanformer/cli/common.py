"""What several verbs share: how a model and the methods on it are named on the command line."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from torch import nn

from ..backbones import create
from ..core import apply, fuse, parse_method, parse_options
from ..speed import load

Model = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
Models = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL [MODEL ...]")]
Apply = Annotated[tuple[str, ...], tyro.conf.arg(name="apply"), tyro.conf.UseAppendAction]
Set = Annotated[tuple[str, ...], tyro.conf.arg(name="set"), tyro.conf.UseAppendAction]


def open_model(
    model: str,
    methods: tuple[str, ...] = (),
    checkpoint: Path | None = None,
    arguments: tuple[str, ...] = (),
    fast: bool = False,
) -> nn.Module:
    """A model from a name or a leanformer checkpoint, with methods as `evit:keep_rate=0.7` applied to it.

    >>> open_model("deit_tiny_patch16_224", ("evit:keep_rate=0.7",)).card.methods[0].name
    'evit'
    """
    if Path(model).suffix == ".safetensors":
        if checkpoint is not None or arguments:
            raise ValueError(f"{model} says itself how it was built: give no checkpoint and no arguments with it")
        opened = load(model, fast=fast)
    else:
        opened = create(model, checkpoint, **parse_arguments(arguments))
    return apply(opened, *(parse_method(spec) for spec in methods)) if methods else opened


def side_by_side(
    models: tuple[str, ...], methods: tuple[str, ...], checkpoint: Path | None, arguments: tuple[str, ...], fused: bool
) -> dict[str, nn.Module]:
    """Models by name, then the first one with each of the methods on it (several joined by +), fused or as it is.

    >>> list(side_by_side(("deit_tiny_patch16_224",), ("repa+evit",), None, ("depth=6",), fused=False))
    ['deit_tiny_patch16_224', 'deit_tiny_patch16_224 repa+evit']
    """
    if methods and not models:
        raise ValueError("--apply puts its methods on the first model: name one")
    named = {model: open_model(model, (), checkpoint, arguments) for model in models}
    for spec in methods:
        model = open_model(models[0], tuple(spec.split("+")), checkpoint, arguments)
        named[f"{models[0]} {spec}"] = fuse(model, verify=False) if fused else model
    return named


def parse_arguments(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Arguments written as name=value, as a dict.

    >>> parse_arguments(("img_size=384", "global_pool=avg"))
    {'img_size': 384, 'global_pool': 'avg'}
    """
    return parse_options(arguments)
