"""How fast the students of a study are once fused, against their teacher: all kinds in one run, apart from training.

Speed does not depend on weights, so that untrained students do, and nothing has to be trained first.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core import fuse, input_of
from ..measure import compare
from ..measure.versus import Contest, versus
from ..optimize import optimize
from .claims import claim
from .study import Scale, Study, rows_in, write_rows


def measure_study(
    study: Study, scale: Scale, output: Path, runs: Path, only: str = "", batch: int = 256, repeats: int = 5
) -> list[dict[str, Any]]:
    """Time every kind of student beside the teacher and put the figures into the rows of `output`.

    With `scale.compile` each is timed eager, compiled and optimised, against the teacher's fastest form.

    >>> measure_study(study, scale, Path("results/study.json"), Path("runs/study"))  # doctest: +SKIP
    """
    classes = 1000
    teacher = study.teacher(classes).eval()
    kinds = {student.kind: student for student in study.chosen(only)}
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # batch norms without statistics: nothing was trained
        leans = {kind: fuse(student.make(teacher, scale.epochs), verify=False) for kind, student in kinds.items()}
    found = _contests(teacher, leans, scale, batch, repeats) if scale.compile else _eager(teacher, leans, scale, batch)
    with claim(runs, wait=True):
        rows = rows_in(output)
        for row in rows:
            row.update(found.get(row["kind"], {}))
        if rows:
            write_rows(study, scale, output, rows)
    return [{"kind": kind, **facts} for kind, facts in found.items()]


def _contests(
    teacher: nn.Module, leans: dict[str, nn.Module], scale: Scale, batch: int, repeats: int
) -> dict[str, dict[str, Any]]:
    dtype = "bfloat16" if scale.precision == "bf16" else "float32"
    contests = versus(
        teacher, leans, optimize, device=scale.place, batch=batch, dtype=dtype,
        size=input_of(teacher)["input_size"], repeats=repeats,
    )  # fmt: skip
    return {contest.label: _facts(contest) for contest in contests}


def _facts(contest: Contest) -> dict[str, Any]:
    """Our forms over the teacher's eager and over its fastest form."""
    compiled = {form: contest.forms[form] / contest.yardstick for form in ("compiled", "optimised")}
    eager = {"eager": contest.forms["eager"] / contest.forms["backbone eager"]}
    return {
        "speedup": eager | compiled,
        "images_per_second": {form: round(rate) for form, rate in contest.forms.items()},
        "spread": {form: round(share, 4) for form, share in contest.spread.items()},
        "measured": {"batch": contest.batch, "dtype": contest.dtype},
    }


def _eager(teacher: nn.Module, leans: dict[str, nn.Module], scale: Scale, batch: int) -> dict[str, dict[str, Any]]:
    rows = compare(
        {"teacher": teacher, **leans}, device=scale.place, batches=[batch], modes=("eager",), repeats=5
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
