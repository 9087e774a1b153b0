"""What a run tells: JSON lines for programs, one CSV row an epoch for spreadsheets, a bar or plain lines for people."""

import csv
import io
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..core import write_atomically


class Journal:
    """Logs of a run folder; without a folder it only speaks, and in other processes than the first not even that.

    >>> journal = Journal(None, quiet=True)
    >>> journal.event("start", note="hello")
    """

    def __init__(self, folder: Path | None, total: int = 0, start: int = 0, quiet: bool = False, tracker: Any = None):
        self.folder, self.quiet, self.tracker = folder, quiet, tracker
        self.total = total
        self.epochs: list[dict[str, Any]] = []
        if folder is not None:
            self._forget_after(start)
        self.console = Console(stderr=False)
        self.bar = self._make_bar(start) if not quiet and self.console.is_terminal else None
        self._told = 0.0
        self._known: set[tuple[str, ...]] = set()

    def once(self, what: str, /, **values: str) -> None:
        """Something that may happen in every epoch, such as an unreadable image, and is told the first time."""
        happened = (what, *values.values())
        if happened not in self._known:
            self._known.add(happened)
            self.event(what, **values)

    def event(self, what: str, /, **values: Any) -> None:
        """Something that happened once, such as a resumption or a skipped image."""
        self._line({"kind": "event", "event": what, **values})
        text = ", ".join(f"{key} {value}" for key, value in values.items())
        self.say(f"{what}: {text}" if text else what)

    def step(self, update: int, values: dict[str, float]) -> None:
        """Losses, rates and speed of an update."""
        self._line({"kind": "step", "update": update, **values})
        if self.tracker is not None:
            self.tracker.log(values, step=update)
        text = _short(values)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=update, description=text)
        elif time.monotonic() - self._told > 10:
            self._told = time.monotonic()
            self.say(f"update {update}/{self.total}  {text}")

    def epoch(self, epoch: int, update: int, values: dict[str, float]) -> None:
        """What an epoch came to."""
        row = {"epoch": epoch, "update": update, **values}
        self._line({"kind": "epoch", **row})
        if self.tracker is not None:
            self.tracker.log({f"epoch/{key}": value for key, value in values.items()}, step=update)
        self.epochs.append(row)
        if self.folder is not None:
            write_atomically(self.folder / "log.csv", lambda name: Path(name).write_text(_csv(self.epochs)))
        self.say(f"epoch {epoch}  {_short(values)}")

    def say(self, text: str) -> None:
        """One line for people."""
        if self.quiet:
            return
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, flush=True)

    def close(self) -> None:
        """Take the bar off the screen."""
        if self.bar is not None:
            self.bar.stop()

    def _line(self, values: dict[str, Any]) -> None:
        if self.folder is not None:
            try:
                with open(self.folder / "log.jsonl", "a") as file:
                    file.write(json.dumps(values) + "\n")
            except OSError as error:
                raise ValueError(f"cannot write {self.folder / 'log.jsonl'}: {error.strerror}") from error

    def _forget_after(self, update: int) -> None:
        """Drop what was logged after the checkpoint that the run continues from; it will be logged again."""
        path = self.folder / "log.jsonl"  # type: ignore[operator]
        if not path.exists():
            return
        kept = []
        for line in path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the last line of a killed process
                continue
            if entry.get("update", 0) <= update and (update or entry["kind"] == "event"):
                kept.append(line)
                if entry["kind"] == "epoch":
                    self.epochs.append({key: value for key, value in entry.items() if key != "kind"})
        write_atomically(path, lambda name: Path(name).write_text("".join(line + "\n" for line in kept)))

    def _make_bar(self, start: int) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=Console(file=sys.stdout))
        bar.add_task("training", total=self.total, completed=start)
        bar.start()
        return bar


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _short(values: dict[str, float]) -> str:
    return "  ".join(f"{key} {_number(value)}" for key, value in values.items())


def _number(value: float) -> str:
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
