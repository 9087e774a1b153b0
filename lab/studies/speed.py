"""How fast the students of a study are once fused, against their teacher: all kinds in one run, apart from training.

Speed does not depend on weights, so that untrained students do, and nothing has to be trained first.
"""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from leanformer.core import fuse, write_atomically
from leanformer.measure import compare

from ..compile_together import compile_together
from ..contest import Conditions, run_contests
from ..contest_result import Contest
from ..fresh_device import fresh_device
from .file_lock import file_lock
from .rows import SPEEDS, known_speeds, rows_in
from .scale import Scale
from .student import Study
from .study import write_rows


def measure_study(
    build: Callable[[], Study],
    scale: Scale,
    output: Path,
    runs: Path,
    only: str = "",
    batch: int = 256,
    repeats: int = 5,
    workers: int = 1,
) -> list[dict[str, Any]]:
    """Time every kind of student beside the teacher and put the figures into the rows of the result file.

    With `scale.compile` each is timed eager, compiled and optimised, against the teacher's fastest form.

    Args:
        build: makes the study.
        scale: at which size it was run.
        output: the result file.
        runs: the folder of the run folders, where the speeds are left for rows that are trained later.
        only: only the students whose name contains this text.
        batch: images at a time.
        repeats: how often each form is timed.
        workers: processes that compile their share of the kinds side by side; each is timed beside the teacher.

    >>> measure_study(partial(vit_tiny, None), scale, Path("results/study.json"),
    ...               Path("runs/study"))  # doctest: +SKIP
    """
    study = build()
    kinds = list(dict.fromkeys(student.kind for student in study.chosen(only)))
    jobs = [Kinds(build, tuple(kinds[i::workers]), scale, batch, repeats) for i in range(min(workers, len(kinds)))]
    found = {kind: facts for _, part in compile_together(jobs, workers) for kind, facts in (part or {}).items()}
    with file_lock(runs, wait=True):
        rows = rows_in(output)
        known = known_speeds(rows, runs) | found
        write_atomically(runs / SPEEDS, lambda name: Path(name).write_text(json.dumps(known)))
        for row in rows:
            row.update(known.get(row["kind"], {}))
        if rows:
            write_rows(study, scale, output, rows)
    return [{"kind": kind, **facts} for kind, facts in found.items()]


@dataclass(frozen=True)
class Kinds:
    """Some kinds of a study's students, timed beside the teacher."""

    build: Callable[[], Study]
    kinds: tuple[str, ...]
    scale: Scale
    batch: int
    repeats: int

    def __call__(self, ready: Callable[[], None] | None = None) -> dict[str, dict[str, Any]]:
        study = self.build()
        kinds = {student.kind: student for student in study.students if student.kind in self.kinds}
        made_from = {"", *(student.made_from for student in kinds.values())}
        bases = {name: study.untrained(name, 1000).eval() for name in made_from}
        teacher = bases[""]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # batch norms without statistics: nothing was trained
            leans = {
                kind: fuse(student.make(bases[student.made_from], self.scale.epochs), verify=False)
                for kind, student in kinds.items()
            }
        with fresh_device(self.scale.torch_device):
            if self.scale.compile:
                return _contests(teacher, leans, self.scale, self.batch, self.repeats, ready)
            if ready is not None:
                ready()
            return _eager(teacher, leans, self.scale, self.batch)


def _contests(
    teacher: nn.Module,
    leans: dict[str, nn.Module],
    scale: Scale,
    batch: int,
    repeats: int,
    ready: Callable[[], None] | None,
) -> dict[str, dict[str, Any]]:
    conditions = Conditions(
        device=scale.torch_device, batch=batch, dtype="bfloat16" if scale.precision == "bf16" else "float32",
        repeats=repeats, compile_leans=True,
    )  # fmt: skip
    contests = run_contests("teacher", teacher, fuse(teacher, verify=False), leans, conditions, ready=ready)
    for contest in contests:
        if contest.failed:
            raise RuntimeError(f"{contest.label} cannot be timed: {contest.failed}")
    return {contest.label: _facts(contest) for contest in contests}


def _facts(contest: Contest) -> dict[str, Any]:
    """Eager over the teacher's eager; compiled (in a graph where that is faster) and optimised over its fastest; and
    optimised over the teacher after the same optimize, which is the method's own gain."""
    forms = contest.forms
    compiled = max(rate for form, rate in forms.items() if form.startswith("compiled"))
    return {
        "speedup": {
            "eager": forms["eager"] / forms["backbone eager"],
            "compiled": compiled / contest.fastest_of_timm,
            "optimised": forms["optimised"] / contest.fastest_of_timm,
            "own": forms["optimised"] / forms["backbone optimised"],
        },
        "images_per_second": {form: round(rate) for form, rate in contest.forms.items()},
        "spread": {form: round(share, 4) for form, share in contest.spread.items()},
        "measured": {"batch": contest.batch, "dtype": contest.dtype},
    }


def _eager(teacher: nn.Module, leans: dict[str, nn.Module], scale: Scale, batch: int) -> dict[str, dict[str, Any]]:
    rows = compare(
        {"teacher": teacher, **leans}, device=scale.torch_device, batches=[batch], modes=("eager",), repeats=5
    ).rows  # fmt: skip
    return {
        row.model: {
            "speedup": {"eager": row.speedup},
            "images_per_second": {"eager": round(row.throughput)},
            "spread": {"eager": round(row.spread, 4)},
            "measured": {"batch": row.batch, "dtype": row.dtype},
        }
        for row in rows
        if row.model != "teacher"
    }
