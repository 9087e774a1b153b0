"""leanformer sweep: one model at many settings of its run-time options, measured on real images without training."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from .checks import at_least, check_picture, open_device, output_files, share
from .common import AS_NAMED, Build, Built, Model, describes_itself

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn


Vary = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
FIGURES = ("top1", "top5", "macs")
"""What a row tells of a setting."""


def sweep(
    model: Model,
    data: str,
    built: Built = AS_NAMED,
    vary: Vary = (),
    split: str = "val",
    crop: float = 1.0,
    batch_size: int | None = None,
    device: str = "cpu",
    figure: Path | None = None,
    output: Path | None = None,
) -> None:
    """Accuracy of one model at every combination of its methods' run-time options, without training.

    Example: leanformer sweep vit_tiny_patch16_224 --checkpoint vit_tiny.safetensors --data pack:nips17_imagenet_224.npz
    --apply {tokens} --vary keep_rate=0.9,0.7,0.5 --vary fuse_tokens=false,true

    Args:
        model: A model's name or a leanformer checkpoint.
        data: A folder of images, pack:PATH, hfds/PATH or wds/PATH.
        vary: A run-time option and its values, as option=value,value; several make all combinations.
        built: Methods, weights and arguments.
        split: Which part of the data.
        crop: The share of each picture that is looked at, in the middle; 1 for pictures that are cropped already.
        batch_size: Images at a time; by default 8 on a CPU and else 256.
        device: cpu or cuda.
        figure: A .png or .svg file for accuracy against MACs.
        output: Write the result as JSON after each setting; the same command goes on where it was interrupted.
    """
    from ..core import card_of, with_options
    from ..core.method import plain
    from ..data.sources import check_fit, open_data
    from ..measure import count, record, rows_to_resume, write_result
    from ..measure.terminal import console
    from ..search.record import fingerprint
    from ..train import evaluate
    from ..visualise import trade_off

    at_least(1, batch_size=batch_size)
    share(crop=crop)
    output_files(output)
    check_picture(figure)
    place = open_device(device)
    opened = built.open(model).to(place)
    candidates = [({option: plain(value) for option, value in each.items()}, each) for each in settings(opened, vary)]
    images = open_data(data, split)
    check_fit(opened, images)
    methods = [{"name": method.name, "options": method.fields()} for method in card_of(opened).methods]
    about = {
        "model": model, "weights": weights_of(model, built), "arguments": list(built.arguments), "methods": methods,
        "data": Path(data).name, "fingerprint": fingerprint(images), "split": split, "images": len(images),
        "crop": crop,
    }  # fmt: skip
    rows = rows_to_resume(output, about)
    for told, setting in candidates:
        if any(told == options_of(row) for row in rows):
            continue
        lean = with_options(opened, **setting)
        found = evaluate(lean, images, device=str(place), batch_size=batch_size, crop=crop)
        rows.append({**told, "top1": found.top1, "top5": found.top5, "macs": count(lean).macs})
        rows.sort(key=lambda row: [told == options_of(row) for told, _ in candidates], reverse=True)
        if output is not None:
            write_result(record("sweep", rows, device, **about), output)
    console().print(table_of(model, rows))
    if figure is not None:
        points = [row | {"setting": words_of(row)} for row in rows]
        console().print(f"wrote {trade_off(points, x='macs', label='setting').save(figure)}")


def weights_of(model: str, built: Build) -> str | None:
    """A hash of the weights that a model gets from files; None where there are none, so that its name tells all.

    Args:
        model: A model's name, a leanformer checkpoint or a hub folder.
        built: Its methods, weights and arguments. Methods may begin with random weights, so they are left out.

    >>> weights_of("vit_tiny_patch16_224", Build())
    """
    from ..prediction.forms import model_fingerprint

    if built.checkpoint is None and not describes_itself(model):
        return None
    return model_fingerprint(replace(built, methods=()).open(model))


def settings(model: nn.Module, vary: tuple[str, ...]) -> list[dict[str, Any]]:
    """Every combination of the values given as `option=value,value`.

    >>> from leanformer.cli.common import Build
    >>> from leanformer.cli.parser import EXAMPLES
    >>> settings(Build((EXAMPLES["tokens"],)).open("deit_tiny_patch16_224"), ("keep_rate=0.5,0.7",))
    [{'keep_rate': 0.5}, {'keep_rate': 0.7}]
    """
    from ..core import card_of, parse_method

    known = {option: method for method in card_of(model).methods for option in method.runtime}
    if not known:
        raise ValueError("this model has no run-time options to vary; give it a method that has, --apply NAME")
    if not vary:
        raise ValueError(f"nothing to vary; give --vary OPTION=VALUE,VALUE with one of: {', '.join(sorted(known))}")
    choices = {}
    for text in vary:
        option, _, values = text.partition("=")
        if option not in known:
            raise ValueError(f"'{option}' is no run-time option of this model; it has: {', '.join(sorted(known))}")
        name = known[option].name
        split = re.split(r",(?![^(]*\))", values)  # commas within a tuple do not separate
        choices[option] = [getattr(parse_method(f"{name}:{option}={value}"), option) for value in split]
    return [dict(zip(choices, values)) for values in itertools.product(*choices.values())]


def options_of(row: dict[str, Any]) -> dict[str, Any]:
    """The setting that a row is of: the options that were varied; the others are the model's own.

    >>> options_of({"keep_rate": 0.5, "top1": 70.0, "top5": 90.0, "macs": 1e9})
    {'keep_rate': 0.5}
    """
    return {key: value for key, value in row.items() if key not in FIGURES}


def words_of(row: dict[str, Any]) -> str:
    """The setting of a row in words.

    >>> words_of({"keep_rate": 0.5, "fuse_tokens": True, "top1": 70.0})
    'keep_rate=0.5, fuse_tokens=True'
    """
    return ", ".join(f"{option}={value}" for option, value in options_of(row).items())


def table_of(model: str, rows: list[dict[str, Any]]) -> Table:
    """The rows as a table for people; a cell is empty where an option was not varied."""
    from rich.table import Table

    options = list(dict.fromkeys(option for row in rows for option in options_of(row)))
    table = Table(*options, "top-1", "top-5", "MACs", title=f"{model}, without training")
    for row in rows:
        shown = (f"{row['top1']:.1f}", f"{row['top5']:.1f}", f"{row['macs'] / 1e9:.3f} G")
        table.add_row(*(str(row.get(option, "")) for option in options), *shown)
    return table
