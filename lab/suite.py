"""Running a suite of models: rows grouped by backbone and batch, written as they come, resumed where they stopped."""

import functools
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanformer.export import RUNTIMES, runtime_opener
from leanformer.measure import choose, command_line, commit, console, count, record, rows_to_resume, write_result

from .compile_together import compile_together, told
from .contest import Conditions, run_contests
from .contest_result import FP8, OPTIMISED, Contest
from .contest_table import contest_table
from .fresh_device import fresh_device
from .peers import installed as peer_installed
from .peers import make_peer
from .suite_rows import SUITES, Entry

ON_CPU = ("onnxruntime", "openvino")
"""Runtimes in which the suite `cpu` times the models as well, where they are installed."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a command says of a suite beside its name."""

    device: torch.device
    dtype: str = "bfloat16"
    repeats: int = 11
    batches: tuple[int, ...] = ()
    only: str = ""
    fp8: bool = False
    workers: int = 1
    go: Path | None = None
    dry_run: bool = False
    output: Path | None = None

    def kind(self, suite: str) -> str:
        """What a result file says that it holds; rows of tiny models are never taken for real ones."""
        return f"suite {suite}{' dry run' if self.dry_run else ''}"


def run_suite(name: str, options: Options) -> int:
    """Run a suite, print it, and write it as JSON after every backbone; rows of this commit are not measured again.

    Args:
        name: gpu, cpu, peers or growth.
        options: device, dtype, batches, ….

    Returns:
        The exit code: 1 where a row failed.
    """
    if name not in SUITES:
        raise ValueError(f"unknown suite '{name}'; known: {', '.join(SUITES)}, families")
    kind = options.kind(name)
    rows = rows_of_this_commit(options.output, kind)
    done = {_key(row) for row in rows if not _lacks_fp8(row, options)}
    groups = sorted(_groups(name, options, done), key=lambda group: -len(group.entries))  # alike ones compile together
    papers = {entry.label: entry.paper for entry, _ in SUITES[name](options.batches)}
    missing = 0
    results = compile_together(groups, options.workers, options.go)
    for _, found in told(results, len(groups), lambda group: group.name):
        missing += found is None
        measured = [_row(contest, papers) for contest in found or []]
        again = {_key(row) for row in measured if not row["failed"]}
        rows = [row for row in rows if _key(row) not in again] + measured
        if options.output is not None and rows:
            write_result(record(kind, rows, options.device), options.output)
    contests = list(map(_contest, rows))
    console().print(contest_table(contests))
    failed = [f"{contest.label}, batch {contest.batch}: {contest.failed}" for contest in contests if contest.failed]
    without = [
        f"{contest.label}, batch {contest.batch}, without {form}: {why}"
        for contest in contests
        for form, why in contest.missing.items()
    ]
    for line in failed + without:
        console().print(line, markup=False, highlight=False)
    return 1 if missing or failed else 0


def _key(row: Mapping[str, Any]) -> tuple[str, int, str]:
    return row["label"], row["batch"], row["dtype"]


def _lacks_fp8(row: Mapping[str, Any], options: Options) -> bool:
    """Whether fp8 products are asked for and a row was measured without them; models of other libraries have none."""
    return options.fp8 and OPTIMISED in row["forms"] and FP8 not in row["forms"]


def rows_of_this_commit(output: Path | None, kind: str) -> list[dict[str, Any]]:
    """The rows that an interrupted run of the same suite left in its file, at the commit that runs now.

    Args:
        output: the result file; None where nothing is written.
        kind: what the file must say that it holds.

    >>> rows_of_this_commit(None, "suite gpu")
    []
    """
    rows = rows_to_resume(output, {"kind": kind})
    return [row for row in rows if "commit" in row and row["commit"] == commit() and not row["failed"]]


@dataclass(frozen=True)
class Group:
    """The entries of one backbone at one size and batch: timed together, so that the backbone is compiled once."""

    entries: tuple[Entry, ...]
    batch: int
    options: Options
    runtimes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What progress calls it."""
        return f"{self.entries[0].backbone}, batch {self.batch}"

    def __call__(self, ready: Callable[[], None] | None = None) -> list[Contest]:
        with tempfile.TemporaryDirectory() as folder, fresh_device(self.options.device):
            try:
                return self._timed(Path(folder), ready)
            except Exception as error:  # the other groups are worth having
                failed, first = f"{type(error).__name__}: {error}"[:500], self.entries[0]
                known = first.backbone, self.batch, first.arguments.get("img_size", 0), self.options.dtype
                return [Contest(entry.label, *known, failed=failed) for entry in self.entries]

    def _timed(self, folder: Path, ready: Callable[[], None] | None) -> list[Contest]:
        first, options = self.entries[0], self.options
        conditions = Conditions(
            device=options.device, batch=self.batch, dtype=options.dtype, repeats=options.repeats, fp8=options.fp8,
            runtimes={name: runtime_opener(name, folder) for name in self.runtimes},
        )  # fmt: skip
        return run_contests(
            first.backbone, first.timms(), first.own(), self._leans(), conditions, peers=self._peers(), ready=ready
        )

    def _leans(self) -> dict[str, nn.Module]:
        return {entry.label: entry.lean() for entry in self.entries if not entry.peer}

    def _peers(self) -> dict[str, Callable[[], nn.Module]]:
        """The models of other libraries, made when they are asked for."""
        return {entry.label: functools.partial(_peer, entry) for entry in self.entries if entry.peer}


def _peer(entry: Entry) -> nn.Module:
    return make_peer(entry.peer, entry.timms(), count(entry.lean()).macs)


def _groups(name: str, options: Options, done: set[tuple[str, int, str]]) -> Iterator[Group]:
    rows = {f"{entry.label} batch {batch}.": (entry, batch) for entry, batch in SUITES[name](options.batches)}
    chosen = [rows[row] for row in choose(rows, options.only)]
    chosen = [(e, b) for e, b in chosen if not e.peer or peer_installed(e.peer)]
    if options.dry_run:
        chosen = [(entry.tiny(), min(batch, 2)) for entry, batch in chosen]
    chosen = [(e, b) for e, b in chosen if (e.label, b, options.dtype) not in done]
    runtimes = installed(ON_CPU) if name == "cpu" else ()
    for key in dict.fromkeys(_together(*row) for row in chosen):
        mine = dict.fromkeys(e.label for e, b in chosen if _together(e, b) == key)
        entries = {e.label: e for e, _ in chosen}
        yield Group(tuple(entries[label] for label in mine), key[2], options, runtimes)


def installed(runtimes: Sequence[str]) -> tuple[str, ...]:
    """Those of the runtimes whose packages are there.

    >>> installed(["torch"])
    ('torch',)
    """
    return tuple(
        name for name in runtimes if all(importlib.util.find_spec(package) for package in RUNTIMES[name].packages)
    )


def _together(entry: Entry, batch: int) -> tuple[str, str, int]:
    return entry.backbone, str(entry.arguments), batch


def _row(contest: Contest, papers: Mapping[str, str]) -> dict[str, Any]:
    return contest.row() | {"paper_speedup": papers[contest.label], "command": command_line(), "commit": commit()}


def _contest(row: Mapping[str, Any]) -> Contest:
    """A row of a result file as the contest that it was."""
    return Contest(**{name: row[name] for name in Contest.__dataclass_fields__ if name in row})
