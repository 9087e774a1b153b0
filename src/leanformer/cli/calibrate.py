"""leanformer calibrate, recalibrate: start a converted model from data, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .checks import at_least, check_seed, open_device, output_files
from .common import AS_NAMED, Built, Model, open_model
from .parser import EXAMPLES

if TYPE_CHECKING:
    from torch import nn


def calibrate(
    model: Model,
    data: str,
    output: Path,
    built: Built = AS_NAMED,
    images: int = 512,
    split: str = "train",
    evaluate_on: str | None = None,
    device: str | None = None,
    seed: int = 0,
) -> None:
    """Put methods into a trained model and fit them, block by block, to what it computed without them; no training.

    Example: leanformer calibrate vit_tiny_patch16_224 --checkpoint vit_tiny.pth --apply {ffn}
    --data imagenet/ --output lean.safetensors

    Args:
        model: A trained model: its name (and a checkpoint) or a leanformer checkpoint. It is the teacher.
        data: A folder of images or pack:PATH. The nearer to what the model will see, the better the fit.
        output: The file to write.
        built: The methods to fit, weights and arguments.
        images: How many images to fit on.
        split: Which part of the data they come from.
        evaluate_on: A split to print accuracies on, before and after.
        device: cpu, cuda, …; the fastest there is by default.
        seed: Which images.
    """
    from .. import core
    from ..data.samples import sample_images
    from ..measure.terminal import console

    if not built.methods:
        raise ValueError(f"give at least one method to fit, for example --apply {EXAMPLES['ffn']}")
    at_least(1, images=images)
    check_seed(seed)
    output_files(output, folders=False)
    where = open_device(device)
    teacher = open_model(model, (), built.checkpoint, built.arguments).eval().to(where)
    plain = core.apply(teacher, *(core.parse_method(spec) for spec in built.methods)).to(where)
    check_split(teacher, data, evaluate_on)
    chosen = sample_images(teacher, data, images, split=split, seed=seed).to(where)
    fitted = core.calibrate(plain, teacher, chosen)
    core.save(fitted, output)
    if evaluate_on is not None:
        _compare({"teacher": teacher, "converted": plain, "calibrated": fitted}, data, evaluate_on)
    console().print(f"wrote {output}, fitted on {len(chosen)} images of {data} ({split})")


def recalibrate(
    model: Model,
    data: str,
    output: Path,
    images: int = 2048,
    batch_size: int = 128,
    split: str = "train",
    evaluate_on: str | None = None,
    device: str | None = None,
    seed: int = 0,
) -> None:
    """Give the batch norms of a trained model the exact statistics of its final weights; do this before fuse.

    Example: leanformer recalibrate lean.safetensors --data imagenet/ --output precise.safetensors

    Args:
        model: A leanformer checkpoint.
        data: A folder of images or pack:PATH.
        output: The file to write.
        images: How many images to take statistics of.
        batch_size: Images at a time.
        split: Which part of the data they come from.
        evaluate_on: A split to print accuracies on, before and after.
        device: cpu, cuda, …; the fastest there is by default.
        seed: Which images.
    """
    from .. import core
    from ..data.samples import sample_images
    from ..measure.terminal import console

    at_least(1, images=images, batch_size=batch_size)
    check_seed(seed)
    output_files(output, folders=False)
    where = open_device(device)
    trained = open_model(model).to(where)
    check_split(trained, data, evaluate_on)
    chosen = sample_images(trained, data, images, split=split, seed=seed).to(where)
    precise = core.recalibrate(trained, chosen, batch=batch_size)
    core.save(precise, output)
    if evaluate_on is not None:
        _compare({"trained": trained, "recalibrated": precise}, data, evaluate_on)
    console().print(f"wrote {output}, with the statistics of {len(chosen)} images of {data} ({split})")


def check_split(model: nn.Module, data: str, split: str | None) -> None:
    """Refuse a split that is not there or has other classes than the model, before any work is done.

    None stands for one that was not asked for."""
    from ..data.sources import check_fit, open_data

    if split is not None:
        check_fit(model, open_data(data, split))


def _compare(models: dict[str, nn.Module], data: str, split: str) -> None:
    from rich.table import Table

    from ..measure.terminal import console
    from ..train import evaluate

    table = Table("", "top-1", "top-5", title=f"{data} ({split})", title_justify="left")
    for name, model in models.items():
        found = evaluate(model, data, split=split, device=str(next(model.parameters()).device))
        table.add_row(name, f"{found.top1:.2f} %", f"{found.top5:.2f} %")
    console().print(table)
