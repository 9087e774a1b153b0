"""leanformer eval: accuracy on a data set, with what is confused with what."""

import json
from pathlib import Path
from typing import Literal

from rich.table import Table

from ..core import write_atomically
from ..measure.console import console
from ..train import Evaluation, evaluate
from .common import Apply, Model, Set, open_model


def eval_(
    model: Model,
    data: str,
    methods: Apply = (),
    checkpoint: Path | None = None,
    arguments: Set = (),
    split: str = "val",
    batch_size: int = 256,
    device: str | None = None,
    precision: Literal["no", "bf16", "fp16"] = "no",
    compile: bool = False,
    workers: int = 4,
    confusions: int = 10,
    per_class: bool = False,
    output: Path | None = None,
) -> None:
    """Top-1, top-5, confused pairs and accuracy by class; size, crop and normalisation are the model's own.

    Example: leanformer eval lean.safetensors --data imagenet/

    Args:
        model: A model's name or a leanformer checkpoint.
        data: A folder of images, pack:PATH, hfds/PATH or wds/PATH.
        methods: A method as name:option=value,option=value; may be given several times.
        checkpoint: Weights for a model given by name.
        arguments: An argument of the model as name=value; may be given several times.
        split: Which part of the data.
        batch_size: Images at a time.
        device: cpu, cuda, …; the fastest there is by default.
        precision: Autocast to bf16 or fp16.
        compile: Compile the model first.
        workers: Processes that read image files.
        confusions: How many pairs of confused classes to show.
        per_class: Show all classes, the worst first.
        output: A JSON file for the figures.
    """
    opened = open_model(model, methods, checkpoint, arguments)
    result = evaluate(
        opened, data, split=split, batch_size=batch_size, device=device, precision=precision, compile=compile,
        workers=workers,
    )  # fmt: skip
    out = console()
    out.print(_summary(model, data, result))
    if confusions:
        out.print(_confusions(result, confusions))
    if per_class:
        out.print(_classes(result))
    if output is not None:
        figures = {**result.summary(), "images": result.images, "damaged": result.damaged, "model": model, "data": data}
        write_atomically(output, lambda name: Path(name).write_text(json.dumps(figures, indent=1) + "\n"))


def _summary(model: str, data: str, result: Evaluation) -> Table:
    table = Table("top-1", "top-5", "loss", "images", "unreadable", "img/s", title=f"{model} on {data}")
    table.title_justify = "left"
    table.add_row(
        f"{result.top1:.2f}%", f"{result.top5:.2f}%", f"{result.loss:.4f}", str(result.images), str(result.damaged),
        f"{result.images_per_second:.0f}",
    )  # fmt: skip
    return table


def _confusions(result: Evaluation, most: int) -> Table:
    table = Table("class", "taken for", "images", title="most confused", title_justify="left")
    for true, predicted, images in result.confusions(most):
        table.add_row(true, predicted, str(images))
    return table


def _classes(result: Evaluation) -> Table:
    table = Table("class", "images", "top-1", title="by class, the worst first", title_justify="left")
    for name, images, accuracy in result.per_class():
        table.add_row(name, str(images), f"{accuracy:.1f}%")
    return table
