"""Running a study: one teacher, many students made from it, the same data and recipe for all, several seeds.

Runs are queued in order. A run whose row stands in the result file is skipped, one that was cut short goes on, and the
file is written after every run, so that a study can be stopped and started at any time. The same command started
several times shares the queue: on one GPU, one process compiles while another one trains.

Tables of a paper share rows under several names. What begins from the same weights and learns the same from the same
teachers is trained once; the other row says whose numbers it has.
"""

import copy
import dataclasses
import hashlib
import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanformer.core import calibrate, card_json, card_of, fuse
from leanformer.data import Data, sample_images
from leanformer.measure import commit, count, record, write_result
from leanformer.train import Recipe

from .file_lock import file_lock, read_row, write_row
from .masters import Masters, accuracy, recipe_of, train_run
from .rows import MEASURED, has_row, known_speeds, rows_in
from .scale import Scale
from .student import Student, Study

SETUP = 8
"""Signs of a run's name that tell how it is trained; as many more tell the weights it starts from."""


def run_study(
    study: Study,
    scale: Scale,
    output: Path,
    runs: Path,
    only: str = "",
    given: Mapping[str, Path] | None = None,
    worker: tuple[int, int] = (0, 1),
) -> list[dict[str, Any]]:
    """Run what is missing and nobody else is at, write the result file after every run, and return all its rows.

    Args:
        study: the teacher and its students.
        scale: at which size they are trained.
        output: the result file.
        runs: the folder of the run folders.
        only: only the students whose name contains this text.
        given: checkpoints of trained teachers by their names, "" being the study's own, instead of training them.
        worker: which process this is and of how many: each begins with other kinds of students, for what a process
            has compiled serves all rows of a kind.

    >>> run_study(study, Scale(data="pack:tiny_imagenet", epochs=2, teacher_epochs=6),
    ...           Path("results/study.json"), Path("runs/study"))  # doctest: +SKIP
    """
    missing = _own_first(list(_missing(study, scale, output, only)), *worker)
    if not missing:
        return rows_in(output)
    train, val = scale.data_sets()
    masters = Masters(study, scale, train, val, runs, given or {})
    if worker[1] > 1:
        masters.share(missing)
    failed: list[str] = []
    for student, seed in missing:
        folder = runs / _folder_name(student, scale, seed)
        with file_lock(folder) as mine:
            if not mine:
                continue
            masters.get(student.made_from, seed)  # without it there is no row at all
            try:
                row = _run(study, student, masters, scale, train, val, folder, seed, output)
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
            if not has_row(done, wanted):
                yield student, seed


def _own_first(missing: list[tuple[Student, int]], worker: int, workers: int) -> list[tuple[Student, int]]:
    kinds = list(dict.fromkeys(student.kind for student, _ in missing))
    return sorted(missing, key=lambda run: (kinds.index(run[0].kind) - worker) % workers)


def _folder_name(student: Student, scale: Scale, seed: int) -> str:
    name = "".join(c if c.isalnum() or c in ".+" else "-" for c in student.name)
    rate = "" if scale.learning_rate is None else f"-{scale.learning_rate:g}"
    return f"{name}-{scale.epochs}{rate}-{seed}"


def _run(
    study: Study, student: Student, masters: Masters, scale: Scale, train: Data, val: Data, folder: Path, seed: int,
    output: Path,
) -> dict[str, Any]:  # fmt: skip
    teacher, teacher_top1 = masters.get(student.made_from, seed)
    torch.manual_seed(seed)
    model = student.make(teacher, scale.epochs).to(scale.torch_device)
    if student.calibrate:
        images = sample_images(teacher, train, student.calibrate, seed=seed).to(scale.torch_device)
        model = calibrate(model, teacher, images)
    recipe = recipe_of(study, scale, scale.epochs).replace(**student.changes)
    named: dict[str, Any] = {
        "student": student.name, "kind": student.kind, "paper_top1": student.paper,
        "command": scale.command_of(student.name, seed),
    }  # fmt: skip
    what = _digest(model, recipe, student, {"seed": seed, **scale.facts(), "teacher_epochs": scale.teacher_epochs})
    known = read_row(folder)
    if known is not None:
        if known.get("run", what)[:SETUP] != what[:SETUP]:
            raise ValueError(f"{folder} has a run of other images, teachers or arguments: give another with --runs")
        return known
    twin = next((row for row in rows_in(output) if row.get("run") == what), None)
    if twin is not None:
        return {**{key: fact for key, fact in twin.items() if key not in MEASURED}, **named, "same_as": twin["student"]}
    before = accuracy(model, val, scale)
    result = train_run(model, recipe, scale, train, val, folder, seed, masters.of(student, seed), student.objective)
    assert result.evaluation is not None
    size = count(fuse(copy.deepcopy(result.model).cpu(), verify=False))
    return {
        **named,
        "run": what,
        "seed": seed,
        **scale.facts(),
        "before": before,
        "top1": result.evaluation.top1,
        "top5": result.evaluation.top5,
        "ema_top1": result.ema_evaluation.top1 if result.ema_evaluation else None,
        "ema_top5": result.ema_evaluation.top5 if result.ema_evaluation else None,
        "teacher_top1": teacher_top1,
        "other_teachers_top1": {name: masters.get(name, seed)[1] for name in sorted(student.needs)},
        "parameters": size.parameters,
        "macs": size.macs,
        "train_seconds": round(result.seconds, 1),
        "train_images": len(train),
        "methods": [repr(method) for method in card_of(result.model).methods],
        "commit": commit(),
    }


def _digest(model: nn.Module, recipe: Recipe, student: Student, scale: Mapping[str, Any]) -> str:
    """The same for two rows whose training is the same: model, recipe, objective, teachers, scale; then weights."""
    roles = dict.fromkeys(student.teachers, student.made_from) | dict(student.others)
    facts = [card_json(model), recipe.to_json(), student.objective, student.calibrate, sorted(roles.items()), scale]
    setup = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:SETUP]
    found = hashlib.sha256(setup.encode())
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return setup + found.hexdigest()[:SETUP]


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
