"""What several verbs share: how a model and the methods on it are named on the command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
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

    Weights kept in half of float32 are opened in float32; in what precision they compute the verbs' options say.

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
    from ..core import apply, check_file, halved, parse_method
    from ..speed import Optimized, load

    chosen = [parse_method(spec) for spec in methods]
    if (checkpoint is not None or arguments) and describes_itself(model):
        raise ValueError(f"{model} says itself how it was built: give no checkpoint and no arguments with it")
    if Path(model).suffix == ".safetensors":
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
    if halved(opened) and not isinstance(opened, Optimized):
        opened = opened.float()
    return apply(opened, *chosen) if chosen else opened


def describes_itself(model: str) -> bool:
    """Whether a model is a checkpoint or a hub folder, which say themselves how it is built, and not a name.

    Args:
        model: What was given as a model.

    >>> describes_itself("lean.safetensors"), describes_itself("vit_tiny_patch16_224")
    (True, False)
    """
    from ..hub.folder import holds_model

    return Path(model).suffix == ".safetensors" or holds_model(model)


@dataclass(frozen=True)
class Build:
    """How a model that is given by name is built, and what is put on it."""

    methods: Apply = ()
    """A method as name:option=value,option=value; may be given several times."""
    checkpoint: Path | None = None
    """Weights for a model given by name."""
    arguments: Set = ()
    """An argument of the model as name=value, for example img_size=384; may be given several times."""

    def open(self, model: str, fast: bool = False) -> nn.Module:
        """The model of this name, or in this checkpoint or hub folder, with the methods on it.

        Args:
            model: The name, the checkpoint or the folder.
            fast: Whether a checkpoint of an optimised model is opened in its fast form.
        """
        return open_model(model, self.methods, self.checkpoint, self.arguments, fast)

    def among(self, model: str, models: Collection[str]) -> Build:
        """How one of several models is built: weights and arguments are for those given by name, if any is.

        Args:
            model: One of the models.
            models: All of them.

        >>> build = Build(checkpoint=Path("vit.pth"))
        >>> build.among("a.safetensors", ["a.safetensors", "vit"]).checkpoint is None
        True
        """
        if _is_finished(model) and not all(map(_is_finished, models)):
            return replace(self, checkpoint=None, arguments=())
        return self


def _is_finished(model: str) -> bool:
    return describes_itself(model) or Path(model).suffix == ".onnx"


Built = Annotated[Build, tyro.conf.arg(name="")]
AS_NAMED = Build()
"""A model as its name or its file has it."""


@dataclass(frozen=True)
class Comparison:
    """Models side by side, and what is put on the first of them."""

    models: Models = ()
    """Names or leanformer checkpoints."""
    methods: Apply = ()
    """A method on the first model as name:option=value,option=value; may be given several times."""
    against: Against = ()
    """One more row: other methods on the first model, joined by +, or another name or checkpoint; may be given several
    times."""
    checkpoint: Path | None = None
    """Weights for the models given by name."""
    arguments: Set = ()
    """An argument of the models given by name, for example img_size=384; may be given several times."""
    fused: bool = True
    """Fuse the models with methods first, as they would be deployed."""

    def open(self) -> dict[str, nn.Module]:
        """The rows by name: the models as they are, the first with all the methods on it, and the others.

        >>> from leanformer.cli.parser import EXAMPLES
        >>> both, one = (EXAMPLES["ffn"], EXAMPLES["tokens"]), (EXAMPLES["tokens"],)
        >>> rows = Comparison(("vit",), both, one, arguments=("depth=6",), fused=False).open()
        >>> [len(model.card.methods) for model in rows.values()]
        [0, 2, 1]
        """
        from ..core import METHODS

        if not self.models:
            raise ValueError("give at least one model, by name or as a checkpoint")
        first, models, rows = self.models[0], list(self.models), [self.methods] if self.methods else []
        for spec in self.against:
            if spec.partition(":")[0].partition("+")[0].strip() in METHODS:
                rows.append(tuple(part.strip() for part in spec.split("+")))
            else:
                models.append(spec)
        plain = Build((), self.checkpoint, self.arguments)
        named = {model: self._deployed(plain.among(model, models).open(model)) for model in models}
        for specs in rows:
            model = replace(plain.among(first, models), methods=specs).open(first)
            named[f"{first} {'+'.join(specs)}"] = self._deployed(model)
        return named

    def _deployed(self, model: nn.Module) -> nn.Module:
        """The model as it would be deployed: a checkpoint with methods on it too, if it is not fused yet."""
        from ..core import Card, fuse, plain_of

        card = getattr(model, "card", None)
        whole = not isinstance(card, Card) or not card.methods or card.fused or plain_of(model) is not model
        return fuse(model, verify=False) if self.fused and not whole else model


Compared = Annotated[Comparison, tyro.conf.arg(name="")]
NOTHING = Comparison()


def short_names(paths: Sequence[str | Path]) -> list[str]:
    """The ends of paths, as many parts of each as it takes to tell them apart.

    Args:
        paths: Files or folders; the same one may be there twice.

    >>> short_names(["runs/vit_0.7", "runs/vit_0.5"]), short_names(["a/lean", "b/lean"])
    (['vit_0.7', 'vit_0.5'], ['a/lean', 'b/lean'])
    """
    whole = [Path(path).resolve() for path in paths]
    names = [path.name for path in whole]
    parts = 1
    while len(set(names)) < len(set(whole)):
        parts += 1
        names = [str(Path(*path.parts[-parts:])) for path in whole]
    return names


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
