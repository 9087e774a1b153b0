"""What `leanformer eval` does for detectors and segmenters: average precision, or intersection over union."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def is_dense(model: nn.Module, task: str | None) -> bool:
    """Whether a model is a detector or a segmenter, or is to be judged as one.

    Args:
        model: Any model.
        task: What was given as --task.
    """
    from ..tasks.dense import DenseTask
    from ..tasks.fitting import parse_task, task_of

    own = task_of(model)
    if task is not None and parse_task(task).name != own.name:
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


def judge_dense(
    name: str,
    model: nn.Module,
    data: str,
    task: str | None,
    output: Path | None,
    methods: tuple[str, ...],
    per_class: bool,
    how: dict[str, Any],
) -> None:
    """Judge a model, print the figures, and write them where that is asked for.

    Args:
        name: The model as the user wrote it.
        model: A detector or a segmenter.
        data: A folder of scenes.
        task: Its options; None for the default ones.
        output: The file for the figures.
        methods: As the user wrote them.
        per_class: Whether to show all classes.
        how: Split, batch size, device, precision and workers.
    """
    from rich.table import Table

    from ..measure import record, write_result
    from ..measure.terminal import console
    from ..tasks.fitting import evaluate, parse_task, task_of

    chosen: Any = task_of(model) if task is None else parse_task(task)
    found, out = evaluate(model, data, task=chosen, **how), console()
    figures = found.summary()
    table = Table(
        *(each.replace("_", " ") for each in figures), "images", "unreadable", "img/s", title=f"{name} on {data}"
    )
    table.title_justify = "left"
    counts = str(found.images), str(found.damaged), f"{found.images_per_second:.1f}"
    table.add_row(*(f"{value:.2f}%" for value in figures.values()), *counts)
    out.print(table)
    if per_class:
        rows = Table("class", next(iter(figures)), title="by class, the worst first", title_justify="left")
        for each, value in found.per_class():
            rows.add_row(each, f"{value:.1f}%")
        out.print(rows)
    if output is not None:
        about = {"data": Path(data).name, "task": chosen.to_json(), "images": found.images, "damaged": found.damaged}
        row = {"model": name, **figures}
        write_result(record("eval", [row], how["device"], methods=list(methods), **about, **figures), output)
