"""leanformer report: one page for a run, to read anywhere and to send to anyone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from .checks import output_files
from .common import short_names

if TYPE_CHECKING:
    from .. import visualise

Runs = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
ABOUT = ("command", "machine", "started", "when", "commit", "data", "objective", "teachers", "versions", "hardware")
OWN = ("run.json", "result.json")
CHARTS = {"bench": "trade_off", "profile": "latency_breakdown"}
"""Kinds of results that have a chart, with the functions of `visualise` that draw them."""


def report(runs: Runs, output: Path = Path("report.html"), title: str = "leanformer report") -> None:
    """One self-contained HTML page of runs: curves, tables and pictures; needs no server and no network.

    A run is a folder of `leanformer train`, any folder with pictures and result files, or one result file.

    Example: leanformer report runs/lean runs/full --output report.html

    Args:
        runs: Run folders or result files.
        output: The page to write.
        title: Its title.
    """
    from .. import visualise
    from ..measure.results import flat
    from ..measure.terminal import console

    output_files(output)
    if not runs:
        raise ValueError("give at least one run folder or result file")
    page = visualise.Page(title)
    named = list(zip(short_names([run.with_suffix("") if run.is_file() else run for run in runs]), runs))
    if len(runs) > 1:
        outcomes = [
            {"run": name, **flat(_read(run / "result.json"))} for name, run in named if _has(run, "result.json")
        ]
        if outcomes:
            page.heading("side by side").table(outcomes)
    for name, run in named:
        page.heading(name)
        if run.is_file():
            add_result(page, run)
        elif run.is_dir():
            add_folder(page, run)
        else:
            raise ValueError(f"{run} does not exist")
    written = page.save(output)
    console().print(f"wrote {written}, {written.stat().st_size / 2**20:.1f} MiB")


def add_folder(page: visualise.Page, folder: Path) -> None:
    """Whatever of a folder can be shown: figures of the run, curves, result files, tables, pictures, settings."""
    from .. import visualise
    from ..measure.results import flat
    from ..visualise.page import KINDS

    before = len(page.parts)
    if _has(folder, "result.json"):
        page.facts(flat(_read(folder / "result.json")))
    if _has(folder, "log.jsonl"):
        figures = visualise.curves(log_lines(folder / "log.jsonl"))
        if figures:
            page.pictures(figures)
    for path in sorted(folder.glob("*.txt")):
        page.plain(path.read_text(errors="replace"))
    for path in sorted(folder.glob("*.json")):
        if path.name not in OWN and "rows" in _read(path):
            page.heading(path.stem, 3)
            add_result(page, path)
    drawn = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in KINDS]
    if drawn:
        page.heading("pictures", 3).pictures(drawn)
    if _has(folder, "run.json"):
        told = _read(folder / "run.json")
        page.facts({key: told[key] for key in ABOUT if key in told}, "how it was made")
        for part in ("recipe", "settings"):
            page.facts(told.get(part, {}), part)
    if len(page.parts) == before:
        raise ValueError(f"{folder} holds nothing to report: no log.jsonl, result files, tables or pictures")


def add_result(page: visualise.Page, path: Path) -> None:
    """A result file as a chart, where its kind has one, and as a table."""
    from .. import visualise
    from ..measure.results import flat, read_rows

    found, rows = _read(path), read_rows(path)
    kind = found.get("kind", "")
    if kind in CHARTS and (kind != "bench" or len(rows) > 1):  # one point is no trade-off
        page.pictures([getattr(visualise, CHARTS[kind])(rows)])
    page.table([flat(row) for row in rows])
    page.facts({key: found[key] for key in ABOUT if key in found}, "how it was made")


def log_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; the last one of a process that was killed may be half a line and is left out."""
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return lines


def _has(run: Path, name: str) -> bool:
    return (run / name).is_file()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    return found if isinstance(found, dict) else {}
