"""How sure the study on photographs is: students against the teacher and fewer pixels, photograph by photograph.

results/study_imagenet.json       student → which of the judging photographs it gets right
results/teacher_photos_cpu.json   the same of the teacher
"""

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from leanformer.measure import console, read_rows

DRAWS = 10_000


def spread(folder: Path = Path("results"), pixels: str = "176 px") -> None:
    """The study's students: how far they are from the teacher and from fewer pixels, and how far chance moves that.

    The spread is that of the photographs: both models answer the same ones, drawn again and again with replacement.
    What another seed of the training would change is not in it.

    Example: python -m lab spread --pixels "160 px"

    Args:
        folder: The folder of the result files.
        pixels: The student that reads fewer pixels, which the others are compared with.
    """
    teacher = teacher_answers(folder)
    students = {_name(row): answers(row, "judge") for row in read_rows(folder / "study_imagenet.json")}
    control = next((right for name, right in students.items() if name.startswith(pixels)), None)
    if control is None:
        raise ValueError(f"the study has no student '{pixels}'; it has: {', '.join(students)}")
    table = Table("student", "top-1, %", "- teacher", f"- {pixels}", title=f"{len(teacher)} photographs, 95% intervals")
    table.add_row("teacher", f"{100 * teacher.mean():.1f}", "", difference(teacher, control))
    for name, right in sorted(students.items(), key=lambda each: -each[1].mean()):
        table.add_row(name, f"{100 * right.mean():.1f}", difference(right, teacher), difference(right, control))
    console().print(table)


def teacher_answers(folder: Path) -> np.ndarray:
    """Which of the judging photographs the teacher gets right."""
    return answers(read_rows(folder / "teacher_photos_cpu.json")[0], "photos")


def answers(row: dict[str, Any], part: str) -> np.ndarray:
    """Which photographs a model gets right, one bit each, as the study keeps them.

    >>> answers({"judge_right": "a0", "judge_top1": 50.0}, "judge")[:4]
    array([1, 0, 1, 0], dtype=uint8)
    """
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(row[f"{part}_right"]), dtype=np.uint8))
    return bits[: round(100 * int(bits.sum()) / row[f"{part}_top1"])]  # the last byte is filled up with zeros


def difference(one: np.ndarray, other: np.ndarray) -> str:
    """The difference in points of top-1 with its interval, in words.

    >>> difference(np.ones(100, dtype=np.uint8), np.zeros(100, dtype=np.uint8))
    '+100.0 (+100.0 to +100.0)'
    """
    low, high = interval(one, other)
    return f"{100 * (one.mean() - other.mean()):+.1f} ({low:+.1f} to {high:+.1f})"


def interval(one: np.ndarray, other: np.ndarray, draws: int = DRAWS) -> tuple[float, float]:
    """The points of top-1 between which the difference lies for 95 of 100 redrawn sets of photographs.

    Args:
        one: of each photograph 1 if it is right, or the share of several models that get it right.
        other: the same of what is compared with it.
        draws: sets of photographs that are drawn.
    """
    values, times = np.unique(np.append(one.astype(float) - other, (-1.0, 0.0, 1.0)), return_counts=True)
    times = times - np.isin(values, (-1.0, 0.0, 1.0))  # the same draws whether all of them occur or not
    drawn = np.random.default_rng(0).multinomial(len(one), times / len(one), draws) @ values * 100 / len(one)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


def _name(row: dict[str, Any]) -> str:
    return ", ".join(filter(None, (row["model"], row["variant"], f"{row['epochs']} epochs")))
