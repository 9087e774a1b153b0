"""leanformer list, describe, apply, fuse: models by name, with methods on them, into files."""

import dataclasses
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

import tyro

from .checks import at_least, output_files
from .common import AS_NAMED, Built, Model


def list_(pattern: Annotated[str, tyro.conf.Positional] = "*") -> None:
    """The methods with their options, and the model names that can be created.

    Example: leanformer list 'deit*'

    Args:
        pattern: Show only the models whose name matches; * stands for anything.
    """
    import timm
    from rich.table import Table

    from ..backbones import MODELS
    from ..backbones.census import FAMILIES
    from ..core import METHODS
    from ..measure.terminal import console

    out = console()
    methods = Table("method", "options and defaults", "what it does", title="methods", title_justify="left")
    for name, method in sorted(METHODS.items()):
        options = ", ".join(f"{f.name}={f.default!r}" for f in dataclasses.fields(method))
        methods.add_row(name, options, (method.__doc__ or "").strip().splitlines()[0])
    out.print(methods)
    timms = {name for family in FAMILIES for name in timm.list_models(module=family)} - set(MODELS)
    for title, names in (("leanformer models", MODELS), ("timm models", timms)):
        found = sorted(name for name in names if fnmatch(name, pattern))
        out.print(f"\n{title} ({len(found)})", style="bold")
        out.print(", ".join(found) or "none", soft_wrap=False)
    out.print("\nA timm model is refused with a reason if its blocks are not understood: leanformer backbones")


def describe(
    model: Model,
    built: Built = AS_NAMED,
    size: tuple[int, int] | None = None,
) -> None:
    """What stands in each block, what it costs, and what is left after fuse.

    Example: leanformer describe deit_small_patch16_224 --apply {tokens} --apply {ffn}

    Args:
        model: A model's name or a leanformer checkpoint.
        built: Methods, weights and arguments.
        size: Height and width of the images to count for.
    """
    from ..core import input_of
    from ..measure import describe as describe_model
    from ..measure.terminal import console

    at_least(1, size=size)
    opened = built.open(model)
    chans = input_of(opened)["input_size"][0]
    console().print(describe_model(opened, (chans, *size) if size else None))


def apply(
    model: Model,
    output: Path,
    built: Built = AS_NAMED,
) -> None:
    """Put methods into a model and save it, ready to be trained, fused or looked at.

    Example: leanformer apply deit_small_patch16_224 --checkpoint deit_small.pth --apply {tokens}
    --output lean.safetensors

    Args:
        model: A model's name or a leanformer checkpoint.
        output: The file to write.
        built: Methods, weights and arguments.
    """
    from ..core import save
    from ..measure import describe as describe_model
    from ..measure.terminal import console

    output_files(output, folders=False)
    opened = built.open(model)
    save(opened, output)
    console().print(describe_model(opened))
    console().print(f"wrote {output}")


def fuse(model: Model, output: Path) -> None:
    """Fold a trained checkpoint into its smaller equivalent, proven equal in float64, and save it.

    Example: leanformer fuse lean.safetensors --output fast.safetensors

    Args:
        model: A leanformer checkpoint.
        output: The file to write.
    """
    from rich.table import Table

    from .. import core
    from ..backbones import load
    from ..measure import count
    from ..measure.terminal import console

    output_files(output, folders=False)
    trained = load(model)
    fused = core.fuse(trained)
    core.save(fused, output)
    before, after = count(trained), count(fused)
    table = Table("", "parameters", "MACs", title=f"{model} → {output}", title_justify="left")
    table.add_row("trained", f"{before.parameters:,}", f"{before.macs / 1e9:.3f} G")
    table.add_row("fused", f"{after.parameters:,}", f"{after.macs / 1e9:.3f} G")
    console().print(table)
