"""leanformer eval: accuracy on a data set, with what is confused with what."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .checks import at_least, open_device, output_files, share
from .common import Apply, Model, Set, open_model
from .eval_dense import is_dense, judge_dense, refuse_options
from .eval_features import judge_features

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    from ..train import Evaluation


def eval_(
    model: Model,
    data: str,
    methods: Apply = (),
    checkpoint: Path | None = None,
    arguments: Set = (),
    split: str = "val",
    crop: float | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    precision: Literal["no", "bf16", "fp16"] = "no",
    compile: bool = False,
    fp8: bool = False,
    workers: int | None = None,
    confusions: int = 10,
    per_class: bool = False,
    knn: int | None = None,
    linear: bool = False,
    train_split: str = "train",
    task: str | None = None,
    output: Path | None = None,
) -> None:
    """Top-1, top-5, confused pairs and accuracy by class; size, crop and normalisation are the model's own.

    With --knn or --linear the features before the head are judged, of any model, with a head or without one. Detectors
    are judged by COCO's average precision of boxes and masks, segmenters by mean IoU and pixel accuracy.

    Example: leanformer eval lean.safetensors --data imagenet/

    Args:
        model: A model's name or a leanformer checkpoint.
        data: A folder of images, pack:PATH, hfds/PATH or wds/PATH; for detectors and segmenters a folder of COCO, VOC,
            Oxford Pets, CamVid, or pictures and label maps.
        methods: A method as name:option=value,option=value; may be given several times.
        checkpoint: Weights for a model given by name.
        arguments: An argument of the model as name=value; may be given several times.
        split: Which part of the data.
        crop: The share of each picture that is looked at, in the middle; 1 for pictures that are cropped already. By
            default what the model's card states.
        batch_size: Images at a time; by default 8 on a CPU and else 256.
        device: cpu, cuda, …; the fastest there is by default.
        precision: Autocast to bf16 or fp16.
        compile: Compile the model first.
        fp8: The same model with its linear layers as fp8 products as well; where the device has no fp8 units, the same
            rounded numbers are multiplied in float32.
        workers: Processes that read image files; by default as many as there are cores.
        confusions: How many pairs of confused classes to show.
        per_class: Show all classes, the worst first.
        knn: Judge the features by so many nearest neighbours among the training images, 20 as a rule, instead of the
            head.
        linear: Judge the features by a linear classifier trained on them, its learning rate found by a sweep.
        train_split: The part of the data that --knn and --linear learn from.
        task: detection or segmentation, with options as in segmentation:evaluation_size=(352,480); by default what the
            model is made for.
        output: A JSON file for the figures.
    """
    from ..measure import record, write_result
    from ..measure.terminal import console
    from ..train import evaluate

    at_least(1, batch_size=batch_size, knn=knn)
    at_least(0, workers=workers, confusions=confusions)
    share(crop=crop)
    output_files(output)
    where = str(open_device(device))
    opened = open_model(model, methods, checkpoint, arguments)
    if is_dense(opened, task):
        refuse_options(crop=crop, compile=compile, fp8=fp8, knn=knn, linear=linear)
        how = {"split": split, "batch_size": batch_size, "device": where, "precision": precision, "workers": workers}
        return judge_dense(model, opened, data, task, output, methods, per_class, how)
    forms = {"": opened, "fp8": _in_fp8(opened)} if fp8 else {"": opened}
    if knn is not None or linear:
        how = {"batch_size": batch_size, "device": where, "precision": precision, "compile": compile,
               "workers": workers, "crop": crop}  # fmt: skip
        return judge_features(model, forms, data, (train_split, split), knn, linear, output, methods, how)
    results = {
        form: evaluate(each, data, split=split, batch_size=batch_size, device=where, precision=precision,
                       compile=compile, workers=workers, crop=crop)
        for form, each in forms.items()
    }  # fmt: skip
    result, out = _named(results[""], opened), console()
    out.print(_summary(model, data, results))
    if confusions:
        out.print(_confusions(result, confusions))
    if per_class:
        out.print(_classes(result))
    if output is not None:
        rows = [{"model": f"{model} {form}".strip(), **each.summary()} | _changed(result, each)
                for form, each in results.items()]  # fmt: skip
        about = {"data": Path(data).name, "images": result.images, "damaged": result.damaged, "methods": list(methods)}
        about |= result.summary() | ({} if crop is None else {"crop": crop})
        write_result(record("eval", rows, where, **about), output)


def _named(result: Evaluation, model: nn.Module) -> Evaluation:
    """The evaluation with classes as words: the data set's names, else those on the model's card, else ImageNet's."""
    from ..core import classes_of
    from ..visualise.names import class_names_of

    classes, total = result.classes or classes_of(model), getattr(model, "num_classes", 0)
    return dataclasses.replace(result, classes=class_names_of(len(classes) if classes else total, classes))


def _in_fp8(model: nn.Module) -> nn.Module:
    from ..core import card_of, set_card
    from ..speed.fp8 import fp8_products

    rounded = fp8_products(model)
    if rounded is None:
        raise ValueError("no linear layer of this model can be an fp8 product: sizes must be multiples of 16")
    return set_card(rounded, card_of(model))


def _changed(plain: Evaluation, other: Evaluation) -> dict[str, float]:
    """How many of the answers differ from the plain model's, in per cent."""
    if plain is other:
        return {}
    return {"answers_changed": 100 * (plain.predictions != other.predictions).double().mean().item()}


def _summary(model: str, data: str, results: Mapping[str, Evaluation]) -> Table:
    from rich.table import Table

    table = Table("", "top-1", "top-5", "loss", "images", "unreadable", "img/s", title=f"{model} on {data}")
    table.title_justify = "left"
    for form, result in results.items():
        table.add_row(
            form, f"{result.top1:.2f}%", f"{result.top5:.2f}%", f"{result.loss:.4f}", str(result.images),
            str(result.damaged), f"{result.images_per_second:.0f}",
        )  # fmt: skip
    return table


def _confusions(result: Evaluation, most: int) -> Table:
    from rich.table import Table

    table = Table("class", "taken for", "images", title="most confused", title_justify="left")
    for true, predicted, images in result.confusions(most):
        table.add_row(true, predicted, str(images))
    return table


def _classes(result: Evaluation) -> Table:
    from rich.table import Table

    table = Table("class", "images", "top-1", title="by class, the worst first", title_justify="left")
    for name, images, accuracy in result.per_class():
        table.add_row(name, str(images), f"{accuracy:.1f}%")
    return table
