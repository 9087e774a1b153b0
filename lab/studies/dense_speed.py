"""How fast the models of the study of dense tasks are: whole, one picture at a time, beside their unchanged backbones.

Models around one backbone are timed in turn in one process; those of several backbones compile at the same time.
What was trained is timed with its weights, on a picture of the test split; the rest with fresh ones, and says so.
"""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import fold, write_atomically

from ..compile_together import compile_together, told
from .dense_rows import METHODS, Builder, Row
from .dense_timing import Conditions, Entry, as_row, compile_ahead, is_timed, shared_cores, time_group

FORMS = ("eager", "compiled backbone", "optimised")


@dataclass(frozen=True)
class Candidate:
    """A model to time: its row, and the file of its weights where there is one."""

    row: Row
    file: Path
    classes: int
    picture: Tensor

    @property
    def size(self) -> tuple[int, int, int]:
        channels, height, width = self.picture.shape
        return channels, height, width


def make(candidate: Candidate, builder: Builder) -> nn.Module:
    """The model of a candidate, fused.

    Args:
        candidate: what is wanted.
        builder: makes it where there are no trained weights.
    """
    if candidate.file.is_file():
        return lf.fuse(lf.load(candidate.file).eval(), verify=False)
    body = builder.backbone(candidate.row)
    body = lf.apply(body, METHODS[candidate.row.method]) if candidate.row.method else body
    classes = tuple(f"class {number}" for number in range(candidate.classes))
    return fold(builder.around(candidate.row, body.eval(), classes).eval())


def time_models(
    candidates: Sequence[Candidate], builder: Builder, how: Conditions, workers: int, path: Path
) -> dict[str, Any]:
    """Time models in groups of one kind and backbone; returns label → figures, and writes them after each group.

    Groups that are in the file already, timed by the same code, are left out.

    Args:
        candidates: what to time.
        builder: makes those without trained weights.
        how: device, dtype, ….
        workers: groups that compile at the same time.
        path: the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    groups = _untimed(candidates, how, path)
    jobs = [functools.partial(_time, group, builder, how) for group in groups]
    with shared_cores(min(workers, len(jobs))):
        for _, rows in told(compile_together(jobs, workers), len(jobs), _labels):
            found |= rows or {}
            write_atomically(path, functools.partial(_write, json.dumps(found, indent=1)))
    return found


def _untimed(candidates: Sequence[Candidate], how: Conditions, path: Path) -> list[list[Candidate]]:
    """The candidates of each kind and backbone, but for those of which all is timed already, as they are now."""
    known = list(json.loads(path.read_text()).values()) if path.is_file() else []
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault((candidate.row.kind, candidate.row.backbone), []).append(candidate)

    def timed(each: Candidate) -> bool:
        return is_timed(known, each.row.label, each.size, how, trained=each.file.is_file())

    return [group for group in groups.values() if not all(map(timed, group))]


def _labels(job: Any) -> str:
    return "; ".join(each.row.label for each in job.args[0])


def _write(text: str, name: str) -> None:
    Path(name).write_text(text)


def _time(
    group: Sequence[Candidate], builder: Builder, how: Conditions, ready: Callable[[], None] | None = None
) -> dict[str, Any]:
    entries = [_entry(each, builder, how) for each in group]
    trained = {each.row.label: each.file.is_file() for each in group}
    return {row.label: as_row(row, how) | {"trained": trained[row.label]} for row in time_group(entries, how, ready)}


def compile_models(
    candidates: Sequence[Candidate], builder: Builder, how: Conditions, workers: int, path: Path
) -> None:
    """Fill the compiler's cache, beside other work; fresh weights compile to the same code as trained ones.

    Args:
        candidates: what will be timed.
        builder: makes the models.
        how: device, dtype, ….
        workers: processes that share the models.
        path: the file of times; what is timed already is left out.
    """
    wanted = [each for group in _untimed(candidates, how, path) for each in group]
    compile_ahead([_entry(replace(each, file=NO_FILE), builder, how) for each in wanted], how, workers)


NO_FILE = Path()
"""No weights: that is a folder."""


def _entry(each: Candidate, builder: Builder, how: Conditions) -> Entry:
    return Entry(
        each.row.kind, each.row.label.partition(", ")[2], functools.partial(_on, each, builder, how.device),
        each.size, unchanged=each.row.unchanged.label, picture=each.picture,
    )  # fmt: skip


def _on(candidate: Candidate, builder: Builder, device: torch.device) -> nn.Module:
    with torch.device("cpu"):
        model = make(candidate, builder)
    return model.to(device)
