"""Arguments that several verbs of the laboratory have, and what they stand for."""

from pathlib import Path
from typing import Annotated

import torch
import tyro
from torch import nn

import leanformer as lf
from leanformer.core import parse_method, parse_options

Set = Annotated[tuple[str, ...], tyro.conf.arg(name="set"), tyro.conf.UseAppendAction]
"""Arguments of a model, each as name=value."""
Apply = Annotated[tuple[str, ...], tyro.conf.arg(name="apply"), tyro.conf.UseAppendAction]
"""Methods, each as name:option=value."""


def open_model(
    model: str, checkpoint: Path | None = None, arguments: tuple[str, ...] = (), methods: tuple[str, ...] = ()
) -> nn.Module:
    """A model by its name, or from a leanformer checkpoint, with methods on it.

    Args:
        model: the name or the file.
        checkpoint: weights for a model given by name.
        arguments: for a model given by name, each as name=value.
        methods: methods as the command line writes them.

    >>> open_model("vit", arguments=("depth=1", "num_classes=5")).num_classes
    5
    """
    if Path(model).suffix != ".safetensors":
        opened = lf.create(model, checkpoint, **parse_options(arguments))
    elif checkpoint is not None or arguments:
        raise ValueError(f"{model} says itself how it was built: give no checkpoint and no arguments with it")
    else:
        opened = lf.load(model)
    return lf.apply(opened, *map(parse_method, methods)) if methods else opened


def device_of(name: str | None) -> torch.device:
    """The device of that name; by default the GPU if there is one.

    Args:
        name: cpu, cuda, ….

    >>> device_of("cpu").type
    'cpu'
    """
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
