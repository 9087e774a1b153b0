"""Running a study: one teacher, many students made from it, the same data and recipe for all, several seeds.

Runs are queued in order. A run whose row stands in the result file is skipped, one that was cut short goes on, and the
file is written after every run, so that a study can be stopped and started at any time. The same command started
several times shares the queue: on one GPU, one process compiles while another one trains.
"""

import copy
import dataclasses
import functools
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanformer.backbones import load
from leanformer.core import calibrate, card_json, card_of, fuse
from leanformer.data import Arrays, Data, open_data, sample_images
from leanformer.measure import commit, count, record, write_result
from leanformer.train import Recipe, Result, evaluate, fit, read_run

from .file_lock import file_lock, read_row, write_row
from .rows import known_speeds, rows_in
from .scale import Scale
from .student import Student, Study

EPOCHS_BETWEEN_CHECKPOINTS = 4


def run_study(
    study: Study,
    scale: Scale,
    output: Path,
    runs: Path,
    only: str = "",
    teacher: Path | None = None,
    worker: tuple[int, int] = (0, 1),
) -> list[dict[str, Any]]:
    """Run what is missing and nobody else is at, write the result file after every run, and return all its rows.

    Args:
        study: the teacher and its students.
        scale: at which size they are trained.
        output: the result file.
        runs: the folder of the run folders.
        only: only the students whose name contains this text.
        teacher: a trained teacher's checkpoint, instead of training one.
        worker: which process this is and of how many: each begins with other kinds of students, for what a process
            has compiled serves all rows of a kind.

    >>> run_study(study, Scale(data="pack:tiny_imagenet", epochs=2, teacher_epochs=6),
    ...           Path("results/study.json"), Path("runs/study"))  # doctest: +SKIP
    """
    missing = _own_first(list(_missing(study, scale, output, only)), *worker)
    if not missing:
        return rows_in(output)
    train, val = (_of_classes(open_data(scale.data, split), scale.first_classes) for split in ("train", "val"))
    train = _limited(train, scale.images)
    master = functools.cache(lambda seed: _teacher(study, scale, train, val, runs / f"teacher-{seed}", seed, teacher))
    failed: list[str] = []
    for student, seed in missing:
        folder = runs / _folder_name(student, scale, seed)
        with file_lock(folder) as mine:
            if not mine:
                continue
            trained = master(seed)
            try:
                row = read_row(folder) or _run(study, student, trained, scale, train, val, folder, seed)
            except Exception as error:  # the rows after this one are worth having
                traceback.print_exc()
                failed.append(f"{student.name}, seed {seed}: {error}")
                continue
            write_row(folder, row)
            _add(study, scale, output, runs, row)
    if failed:
        raise RuntimeError("these runs failed; start again to repeat them:\n  " + "\n  ".join(failed))
    return rows_in(output)


def _missing(study: Study, scale: Scale, output: Path, only: str) -> Iterator[tuple[Student, int]]:
    done = rows_in(output)
    for seed in scale.seeds:
        for student in study.chosen(only):
            wanted = {"student": student.name, "seed": seed, **scale.facts()}
            if not any(wanted.items() <= row.items() for row in _hashable(done)):
                yield student, seed


def _own_first(missing: list[tuple[Student, int]], worker: int, workers: int) -> list[tuple[Student, int]]:
    kinds = list(dict.fromkeys(student.kind for student, _ in missing))
    return sorted(missing, key=lambda run: (kinds.index(run[0].kind) - worker) % workers)


def _hashable(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield {key: value for key, value in row.items() if not isinstance(value, dict | list)}


def _folder_name(student: Student, scale: Scale, seed: int) -> str:
    name = "".join(c if c.isalnum() or c in ".+" else "-" for c in student.name)
    rate = "" if scale.learning_rate is None else f"-{scale.learning_rate:g}"
    return f"{name}-{scale.epochs}{rate}-{seed}"


def _teacher(
    study: Study, scale: Scale, train: Data, val: Data, folder: Path, seed: int, given: Path | None
) -> tuple[nn.Module, float]:
    """The trained teacher and its top-1; another process that needs it too waits until it is trained."""
    with file_lock(folder, wait=True):
        if given is None:
            torch.manual_seed(seed)
            recipe = _recipe(study, scale, scale.teacher_epochs)
            if study.teacher_learning_rate is not None:
                recipe = recipe.replace(learning_rate=study.teacher_learning_rate)
            untrained = study.teacher(val.num_classes or 1000, val.classes)
            if not (folder / "model.safetensors").exists():
                _fit(untrained, recipe, scale, train, val, folder, seed)
        model = load(given or folder / "model.safetensors").to(scale.torch_device)
        if given is None:
            _refuse_another(model, folder, untrained, recipe)
        row = read_row(folder) or {"top1": _accuracy(model, val, scale)}
        write_row(folder, row)
    return model, row["top1"]


def _refuse_another(model: nn.Module, folder: Path, untrained: nn.Module, recipe: Recipe) -> None:
    """The teacher of an earlier command serves this one only if this one would train the same."""
    asked = recipe.to_json() | card_json(untrained)["arguments"]
    told = Recipe.from_json(read_run(folder)["recipe"]).to_json() | card_json(model)["arguments"]
    other = [name for name in sorted(asked.keys() | told.keys()) if asked.get(name) != told.get(name)]
    if other:
        found = ", ".join(f"{name}={told.get(name)}, not {asked.get(name)}" for name in other)
        raise ValueError(f"the teacher in {folder} was trained with {found}: give another folder with --runs")


def _run(
    study: Study, student: Student, master: tuple[nn.Module, float], scale: Scale, train: Data, val: Data,
    folder: Path, seed: int,
) -> dict[str, Any]:  # fmt: skip
    teacher, teacher_top1 = master
    torch.manual_seed(seed)
    model = student.make(teacher, scale.epochs).to(scale.torch_device)
    if student.calibrate:
        images = sample_images(teacher, train, student.calibrate, seed=seed).to(scale.torch_device)
        model = calibrate(model, teacher, images)
    before = _accuracy(model, val, scale)
    recipe = _recipe(study, scale, scale.epochs).replace(**student.changes)
    masters = dict.fromkeys(student.teachers, teacher)
    result = _fit(model, recipe, scale, train, val, folder, seed, masters, student.objective)
    assert result.evaluation is not None
    size = count(fuse(copy.deepcopy(result.model).cpu(), verify=False))
    return {
        "student": student.name,
        "kind": student.kind,
        "seed": seed,
        **scale.facts(),
        "before": before,
        "top1": result.evaluation.top1,
        "top5": result.evaluation.top5,
        "ema_top1": result.ema_evaluation.top1 if result.ema_evaluation else None,
        "ema_top5": result.ema_evaluation.top5 if result.ema_evaluation else None,
        "teacher_top1": teacher_top1,
        "parameters": size.parameters,
        "macs": size.macs,
        "train_seconds": round(result.seconds, 1),
        "train_images": len(train),
        "paper_top1": student.paper,
        "methods": [repr(method) for method in card_of(result.model).methods],
        "command": scale.command_of(student.name, seed),
        "commit": commit(),
    }


def _fit(
    model: nn.Module, recipe: Recipe, scale: Scale, train: Data, val: Data, folder: Path, seed: int,
    teachers: dict[str, nn.Module] | None = None, objective: str | None = None,
) -> Result:  # fmt: skip
    result = fit(
        model, recipe=recipe, data=train, val=val, teacher=teachers or None, objective=objective, output=folder,
        resume=True, seed=seed, device=str(scale.torch_device), precision=scale.precision, compile=scale.compile,
        evaluate_every=max(1, recipe.epochs), calibrate=0,  # the study's own rows say what is calibrated
        save_every=EPOCHS_BETWEEN_CHECKPOINTS * (len(train) // recipe.batch_size),
    )  # fmt: skip
    if not result.finished:  # asked to stop: the other runs of the queue are not begun
        raise SystemExit(f"stopped; the same command goes on from {folder}")
    for leftover in ("checkpoint.pt", "checkpoint.previous.pt"):
        (folder / leftover).unlink(missing_ok=True)  # many runs, each many times the size of its model
    return result


def _recipe(study: Study, scale: Scale, epochs: int) -> Recipe:
    rate = {} if scale.learning_rate is None else {"learning_rate": scale.learning_rate}
    return study.recipe.replace(
        epochs=epochs, warmup_epochs=min(study.recipe.warmup_epochs, epochs / 5), batch_size=scale.batch_size, **rate
    )


def _accuracy(model: nn.Module, val: Data, scale: Scale) -> float:
    return evaluate(copy.deepcopy(model), val, device=str(scale.torch_device), precision=scale.precision).top1


def _of_classes(data: Data, classes: int | None) -> Data:
    if classes is None:
        return data
    if not isinstance(data, Arrays):
        raise ValueError("only packs and arrays can be cut to a number of classes")
    mine = data.labels < classes
    names = None if data.classes is None else data.classes[:classes]
    return Arrays(data.images[mine], data.labels[mine], names, f"{data.name}, first {classes} classes")


def _limited(data: Data, images: int | None) -> Data:
    if images is None:
        return data
    if not isinstance(data, Arrays):
        raise ValueError("only packs and arrays can be cut to a number of images")
    return Arrays(data.images[:images], data.labels[:images], data.classes, f"{data.name}, first {images}")


def _add(study: Study, scale: Scale, output: Path, runs: Path, row: dict[str, Any]) -> None:
    """Put a row into the result file, one process at a time, with the speed of its kind where that is known."""
    with file_lock(runs, wait=True):
        rows = [each for each in rows_in(output) if not _same(each, row, scale)]
        write_rows(study, scale, output, [*rows, row | known_speeds(rows, runs).get(row["kind"], {})])


def _same(one: dict[str, Any], other: dict[str, Any], scale: Scale) -> bool:
    return all(one.get(key) == other.get(key) for key in ("student", "seed", *scale.facts()))


def write_rows(study: Study, scale: Scale, output: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the result file, the rows in the study's order."""
    order = {student.name: index for index, student in enumerate(study.students)}
    rows = sorted(rows, key=lambda row: (order.get(row["student"], len(order)), row["seed"]))
    facts = {key: value for key, value in dataclasses.asdict(scale).items() if key not in ("data", "command")}
    write_result(record(f"study {study.name}", rows, scale.torch_device, scale=facts), output)
