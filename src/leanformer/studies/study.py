"""A study: one teacher, many students made from it, the same data and recipe for all, several seeds.

Runs are queued in order. A run whose row stands in the result file is skipped, one that was cut short goes on, and the
file is written after every run, so that a study can be stopped and started at any time.
"""

import copy
import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn

from ..backbones import load
from ..core import calibrate, card_of, fuse
from ..measure import compare, count, record, write_result
from ..train import Arrays, Recipe, Result, evaluate, fit, open_data
from ..train.data import Data
from ..train.samples import sample_images

Make = Callable[[nn.Module, int], nn.Module]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Student:
    """One row: how the student is made from the trained teacher, and what it learns from."""

    name: str
    make: Make
    """The trained teacher and the number of epochs → the student before training."""
    objective: str | None = None
    """None: the methods' own objective with the teacher; otherwise terms as in `cross_entropy + soft`."""
    teachers: tuple[str, ...] = ("teacher",)
    """The names under which the objective meets the teacher; none trains on labels alone."""
    calibrate: int = 0
    """So many images to fit the new modules on before training."""
    paper: float | None = None
    """The paper's top-1, on its own data and epochs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A teacher and its students."""

    name: str
    teacher: Callable[[int], nn.Module]
    """Number of classes → the teacher before training."""
    recipe: Recipe
    students: tuple[Student, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """At which size a study is run."""

    data: str
    epochs: int
    teacher_epochs: int
    seeds: tuple[int, ...] = (0,)
    batch_size: int = 256
    learning_rate: float | None = None
    images: int | None = None
    """Only the first so many training images."""
    device: str | None = None
    precision: str = "no"
    compile: bool = False
    measure_batch: int = 64
    modes: tuple[str, ...] = ("eager",)


def run_study(
    study: Study, scale: Scale, output: Path, runs: Path, only: str = "", teacher: Path | None = None
) -> list[dict[str, Any]]:
    """Run what is missing, write `output` after every run, and return all its rows.

    >>> run_study(study, Scale(data="pack:tiny_imagenet", epochs=2, teacher_epochs=6),
    ...           Path("results/study.json"), Path("runs/study"))  # doctest: +SKIP
    """
    train, val = _limited(open_data(scale.data, "train"), scale.images), open_data(scale.data, "val")
    rows = json.loads(output.read_text())["rows"] if output.exists() else []
    for seed in scale.seeds:
        master = _teacher(study, scale, train, val, runs / f"teacher-{seed}", seed, teacher)
        for student in (s for s in study.students if only in s.name):
            if _known(rows, student.name, seed, scale):
                continue
            rows.append(_run(study, student, master, scale, train, val, runs, seed))
            write_result(record(f"study {study.name}", rows, scale.device or "cpu", **_facts(scale)), output)
    return rows


def summary(name: str, rows: Sequence[dict[str, Any]]) -> Table:
    """One line a student: mean and range over seeds, and what the fused model costs.

    >>> summary("none", []).row_count
    0
    """
    table = Table(title=f"study {name}", title_justify="left")
    for column in ("student", "seeds", "before %", "top-1 %", "range", "teacher %", "MACs G", "params M", "speed-up"):
        table.add_column(column, justify="left" if column == "student" else "right")
    for student in dict.fromkeys(row["student"] for row in rows):
        mine = [row for row in rows if row["student"] == student]
        top1 = [row["top1"] for row in mine]
        table.add_row(
            student,
            str(len(mine)),
            f"{statistics.mean(row['before'] for row in mine):.1f}",
            f"{statistics.mean(top1):.2f}",
            f"{min(top1):.2f}-{max(top1):.2f}" if len(mine) > 1 else "",
            f"{statistics.mean(row['teacher_top1'] for row in mine):.2f}",
            f"{mine[0]['macs'] / 1e9:.3f}",
            f"{mine[0]['parameters'] / 1e6:.2f}",
            " ".join(f"{mode} {value:.2f}x" for mode, value in mine[0]["speedup"].items()),
        )
    return table


def _teacher(
    study: Study, scale: Scale, train: Data, val: Data, folder: Path, seed: int, given: Path | None
) -> nn.Module:
    if given is not None:
        return load(given)
    if (folder / "model.safetensors").exists():
        return load(folder / "model.safetensors")
    torch.manual_seed(seed)
    recipe = _recipe(study, scale, scale.teacher_epochs)
    return _fit(study.teacher(val.num_classes or 1000), recipe, scale, train, val, folder, seed).model


def _run(
    study: Study, student: Student, teacher: nn.Module, scale: Scale, train: Data, val: Data, runs: Path, seed: int
) -> dict[str, Any]:
    model = student.make(teacher, scale.epochs)
    if student.calibrate:
        images = sample_images(teacher, train, student.calibrate, seed=seed)
        model = calibrate(model, teacher, images)
    before = _accuracy(model, val, scale)
    folder = runs / f"{student.name.replace('/', '-').replace(' ', '-')}-{seed}"
    masters = dict.fromkeys(student.teachers, teacher)
    recipe = _recipe(study, scale, scale.epochs)
    result = _fit(model, recipe, scale, train, val, folder, seed, masters, student.objective)
    assert result.evaluation is not None
    fused = fuse(copy.deepcopy(result.model).cpu(), verify=False)
    size = count(fused)
    return {
        "student": student.name,
        "seed": seed,
        "epochs": scale.epochs,
        "data": scale.data,
        "images": len(train),
        "before": before,
        "top1": result.evaluation.top1,
        "top5": result.evaluation.top5,
        "ema_top1": result.ema_evaluation.top1 if result.ema_evaluation else None,
        "teacher_top1": _accuracy(teacher, val, scale),
        "parameters": size.parameters,
        "macs": size.macs,
        "speedup": _speed(teacher, fused, scale),
        "train_seconds": round(result.seconds, 1),
        "paper_top1": student.paper,
        "methods": [repr(method) for method in card_of(fused).methods],
    }


def _fit(
    model: nn.Module, recipe: Recipe, scale: Scale, train: Data, val: Data, folder: Path, seed: int,
    teachers: dict[str, nn.Module] | None = None, objective: str | None = None,
) -> Result:  # fmt: skip
    return fit(
        model, recipe=recipe, data=train, val=val, teacher=teachers or None, objective=objective, output=folder,
        resume=folder.exists(), seed=seed, device=scale.device, precision=scale.precision, compile=scale.compile,
        evaluate_every=max(1, recipe.epochs),
    )  # fmt: skip


def _recipe(study: Study, scale: Scale, epochs: int) -> Recipe:
    rate = {} if scale.learning_rate is None else {"learning_rate": scale.learning_rate}
    return study.recipe.replace(
        epochs=epochs, warmup_epochs=min(study.recipe.warmup_epochs, epochs / 5), batch_size=scale.batch_size, **rate
    )


def _accuracy(model: nn.Module, val: Data, scale: Scale) -> float:

    return evaluate(copy.deepcopy(model), val, device=scale.device, precision=scale.precision).top1


def _speed(teacher: nn.Module, fused: nn.Module, scale: Scale) -> dict[str, float]:
    """Mode → how much faster the fused student is than the teacher, in one run."""
    rows = compare(
        {"teacher": teacher, "student": fused}, device=scale.device, batches=[scale.measure_batch], modes=scale.modes,
        repeats=5,
    ).rows  # fmt: skip
    return {row.mode: row.speedup for row in rows if row.model == "student"}


def _limited(data: Data, images: int | None) -> Data:
    if images is None:
        return data

    if not isinstance(data, Arrays):
        raise ValueError("only packs and arrays can be cut to a number of images")
    return Arrays(data.images[:images], data.labels[:images], data.classes, f"{data.name}, first {images}")


def _known(rows: Sequence[dict[str, Any]], student: str, seed: int, scale: Scale) -> bool:
    wanted = (student, seed, scale.epochs, scale.data)
    return any((row["student"], row["seed"], row["epochs"], row["data"]) == wanted for row in rows)


def _facts(scale: Scale) -> dict[str, Any]:
    return {"scale": dataclasses.asdict(scale)}
