"""How fast the models of the study of dense tasks are: whole, one picture at a time, beside their unchanged backbones.

Models around one backbone are timed in turn in one process; those of several backbones compile at the same time.
What was trained is timed with its weights, on a picture of the test split; the rest with fresh ones, and says so.
"""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import fold, write_atomically

from ..compile_together import compile_together
from .dense_rows import METHODS, Builder, Row
from .dense_timing import Conditions, Entry, compile_ahead, time_group

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

    Args:
        candidates: what to time.
        builder: makes those without trained weights.
        how: device, dtype, ….
        workers: groups that compile at the same time.
        path: the file.
    """
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault((candidate.row.kind, candidate.row.backbone), []).append(candidate)
    jobs = [functools.partial(_time, group, builder, how) for group in groups.values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    for _, rows in compile_together(jobs, workers):
        found |= rows or {}
        text = json.dumps(found, indent=1)
        write_atomically(path, functools.partial(_write, text))
    return found


def _write(text: str, name: str) -> None:
    Path(name).write_text(text)


def _time(
    group: Sequence[Candidate], builder: Builder, how: Conditions, ready: Callable[[], None] | None = None
) -> dict[str, Any]:
    entries = [_entry(each, builder, how) for each in group]
    trained = {each.row.label: each.file.is_file() for each in group}
    return {row.label: asdict(row) | {"trained": trained[row.label]} for row in time_group(entries, how, ready)}


def compile_models(candidates: Sequence[Candidate], builder: Builder, how: Conditions, workers: int) -> None:
    """Fill the compiler's cache, beside other work; fresh weights compile to the same code as trained ones.

    Args:
        candidates: what will be timed.
        builder: makes the models.
        how: device, dtype, ….
        workers: processes that share the models.
    """
    compile_ahead([_entry(replace(each, file=NO_FILE), builder, how) for each in candidates], how, workers)


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
