"""What `leanformer eval` measures: accuracy of classifiers, of features, and of detectors and segmenters."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table
from torch import nn

from ..core import card_of, classes_of, set_card
from ..data.sources import Stream, check_labelled, open_data
from ..speed.fp8 import fp8_products
from ..tasks import fitting
from ..tasks.dense import DenseTask
from ..train import Evaluation, Judgement, Probe, evaluate, extract_features, knn_accuracy, linear_probe
from ..train.features import check_apart
from ..train.neighbours import check_neighbours
from ..visualise.names import class_names_of


class Judged(NamedTuple):
    """What is printed of an evaluation, and what a result file says of it."""

    tables: Sequence[Table | str]
    rows: list[dict[str, Any]]
    about: dict[str, Any]


def is_dense(model: nn.Module, task: str | None) -> bool:
    """Whether a model is a detector or a segmenter, or is to be judged as one.

    Args:
        model: Any model.
        task: What was given as --task.
    """
    own = fitting.task_of(model)
    if task is not None and fitting.parse_task(task).name != own.name:
        raise ValueError(f"--task {task}: the model is made for {own.name}")
    return isinstance(own, DenseTask)


def refuse_options(**options: Any) -> None:
    """Refuse options that detectors and segmenters do not have.

    Args:
        **options: The values by the names of their options.

    >>> refuse_options(knn=20)
    Traceback (most recent call last):
    ValueError: --knn is for classifiers; this model is none
    """
    for name, value in options.items():
        if value:
            raise ValueError(f"--{name} is for classifiers; this model is none")


def in_fp8(model: nn.Module) -> nn.Module:
    """The model with its linear layers as fp8 products.

    Args:
        model: Any model.
    """
    rounded = fp8_products(model)
    if rounded is None:
        raise ValueError("no linear layer of this model can be an fp8 product: sizes must be multiples of 16")
    return set_card(rounded, card_of(model))


def judge_dense(
    name: str, model: nn.Module, data: str, task: str | None, per_class: bool, how: Mapping[str, Any]
) -> Judged:
    """Average precision of a detector, or intersection over union of a segmenter.

    Args:
        name: The model as the user wrote it.
        model: A detector or a segmenter.
        data: A folder of scenes.
        task: Its options; None for the default ones.
        per_class: Whether to show all classes.
        how: Options of `tasks.evaluate`.
    """
    chosen: Any = fitting.task_of(model) if task is None else fitting.parse_task(task)
    scenes = chosen.scenes(model, data, how["split"])
    found = fitting.evaluate(model, scenes, task=chosen, **how)
    figures, notes = found.summary(), scenes.notes()
    columns = *(each.replace("_", " ") for each in figures), "images", "unreadable", "img/s"
    table = Table(*columns, title=f"{name} on {data}", title_justify="left")
    counts = str(found.images), str(found.damaged), f"{found.images_per_second:.1f}"
    table.add_row(*(f"{value:.2f}%" for value in figures.values()), *counts)
    by_class = _worst_first("class", found.figure)
    for each, value in found.per_class():
        by_class.add_row(each, f"{value:.1f}%")
    tables = [*notes, table, *([by_class] if per_class else [])]
    about = {"task": chosen.to_json(), "images": found.images, "damaged": found.damaged, "notes": notes, **figures}
    return Judged(tables, [{"model": name, **figures}], about)


def judge_classes(
    name: str, forms: Mapping[str, nn.Module], data: str, confusions: int, per_class: bool, how: Mapping[str, Any]
) -> Judged:
    """Accuracy of a classifier.

    Args:
        name: The model as the user wrote it.
        forms: The model in the forms to be judged, by name; the plain one's name is empty.
        data: The data set.
        confusions: How many pairs of confused classes to show.
        per_class: Whether to show all classes.
        how: Options of `train.evaluate`.
    """
    results = {form: evaluate(model, data, **how) for form, model in forms.items()}
    result, tables = _named(results[""], forms[""]), [_summary(f"{name} on {data}", results)]
    if confusions:
        tables.append(Table("class", "taken for", "images", title="most confused", title_justify="left"))
        for true, predicted, images in result.confusions(confusions):
            tables[-1].add_row(true, predicted, str(images))
    if per_class:
        tables.append(_worst_first("class", "images", "top-1"))
        for each, images, accuracy in result.per_class():
            tables[-1].add_row(each, str(images), f"{accuracy:.1f}%")
    rows = [
        {"model": f"{name} {form}".strip(), **each.summary(), **_changed(results[""], each)}
        for form, each in results.items()
    ]
    crop = {} if how["crop"] is None else {"crop": how["crop"]}
    return Judged(tables, rows, {"images": result.images, "damaged": result.damaged, **result.summary(), **crop})


def _named(result: Evaluation, model: nn.Module) -> Evaluation:
    """The evaluation with classes as words: the data set's names, else those on the model's card, else ImageNet's."""
    classes, total = result.classes or classes_of(model), getattr(model, "num_classes", 0)
    return dataclasses.replace(result, classes=class_names_of(len(classes) if classes else total, classes))


def _changed(plain: Evaluation, other: Evaluation) -> dict[str, float]:
    """How many of the answers differ from the plain model's, in per cent."""
    if plain is other:
        return {}
    return {"answers_changed": 100 * (plain.predictions != other.predictions).double().mean().item()}


def _summary(title: str, results: Mapping[str, Evaluation]) -> Table:
    columns = "", "top-1", "top-5", "loss", "images", "unreadable", "img/s"
    table = Table(*columns, title=title, title_justify="left")
    for form, result in results.items():
        table.add_row(
            form, f"{result.top1:.2f}%", f"{result.top5:.2f}%", f"{result.loss:.4f}", str(result.images),
            str(result.damaged), f"{result.images_per_second:.0f}",
        )  # fmt: skip
    return table


def _worst_first(*columns: str) -> Table:
    return Table(*columns, title="by class, the worst first", title_justify="left")


def judge_features(
    name: str,
    forms: Mapping[str, nn.Module],
    data: str,
    splits: tuple[str, str],
    knn: int | None,
    linear: bool,
    how: Mapping[str, Any],
) -> Judged:
    """How often neighbours or a linear classifier on a model's features name the right class, whatever head it has.

    Args:
        name: The model as the user wrote it.
        forms: The model in the forms to be judged, by name; the plain one's name is empty.
        data: The data set.
        splits: The part that is learnt from and the part that is judged.
        knn: How many neighbours vote; None: they are not asked.
        linear: Whether a linear classifier is trained.
        how: Options of `train.extract_features`.
    """
    known, asked = (open_data(data, split) for split in splits)
    for part in (known, asked):
        check_labelled(part)
    check_apart(known, asked)
    if knn is not None and not isinstance(known, Stream):
        check_neighbours(knn, len(known))  # before features are computed, which may take long
    found: dict[tuple[str, str], Judgement] = {}
    for form, model in forms.items():
        train, test = (extract_features(model, part, **how) for part in (known, asked))
        if knn is not None:
            found[form, f"{knn}-NN"] = knn_accuracy(train, test, knn)
        if linear:
            found[form, "linear probe"] = linear_probe(train, test)
    columns, title = ("", "judged by", "top-1", "top-5", "images", "learnt from"), f"features of {name} on {data}"
    table = Table(*columns, title=title, title_justify="left")
    for (form, judge), result in found.items():
        figures = f"{result.top1:.2f}%", f"{result.top5:.2f}%", str(result.images), str(result.known)
        table.add_row(form, judge, *figures)
    sweeps = [_sweep(form, result) for (form, _), result in found.items() if isinstance(result, Probe)]
    rows = [
        {"model": f"{name} {form}".strip(), "judge": judge, **result.summary()}
        for (form, judge), result in found.items()
    ]
    counts = {"images": len(test.labels), "known": len(train.labels), "damaged": train.damaged + test.damaged}
    return Judged([table, *sweeps], rows, counts)


def _sweep(form: str, probe: Probe) -> Table:
    title = f"linear probe{f' {form}' if form else ''}: learning rates, on training images held out"
    table = Table("rate", "top-1", "", title=title, title_justify="left")
    for rate, top1 in probe.sweep.items():
        table.add_row(f"{rate:g}", f"{top1:.2f}%", "taken" if rate == probe.rate else "")
    return table
