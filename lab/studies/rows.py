"""The rows of a study: what its result file holds already, and what was measured for each kind of student."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from leanformer.measure import read_rows

MEASURED = ("speedup", "images_per_second", "spread", "measured")
"""The facts of a row that all students of its kind share."""
SPEEDS = "speeds.json"
"""Of the folder of runs: what was measured for each kind of student, for rows that are trained later."""


def rows_in(output: Path) -> list[dict[str, Any]]:
    """The rows of a result file, none where there is no file yet.

    >>> rows_in(Path("none.json"))
    []
    """
    return read_rows(output) if output.exists() else []


def has_row(rows: Iterable[dict[str, Any]], wanted: dict[str, Any]) -> bool:
    """Whether one of the rows says all that is wanted.

    >>> has_row([{"seed": 0, "top1": 80.0}], {"seed": 1})
    False
    """
    return any(all(key in row and row[key] == value for key, value in wanted.items()) for row in rows)


def known_speeds(rows: Iterable[dict[str, Any]], runs: Path) -> dict[str, dict[str, Any]]:
    """Kind of student → what was measured for it: in the rows that have it, and by the latest timing of these runs.

    >>> known_speeds([{"kind": "EViT 0.7", "top1": 79.7, "speedup": {"eager": 1.2}}], Path("none"))
    {'EViT 0.7': {'speedup': {'eager': 1.2}}}
    """
    told = {row["kind"]: {key: row[key] for key in MEASURED if key in row} for row in rows if "speedup" in row}
    fast = runs / SPEEDS
    return told | (json.loads(fast.read_text()) if fast.exists() else {})
