"""python -m lab seeds: students trained with several seeds, beside their teacher and beside fewer pixels.

    beside the teacher = mean over seeds of the student's top-1 - the teacher's, photograph by photograph, with what 95
                         of 100 redrawn sets of photographs give for it; how far seeds differ is least to most

Files are those of `python -m lab imagenet`, several of one study, or that of `python -m lab transfer`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from leanformer.measure import console, read_rows

from .spread import answers, difference, teacher_answers
from .transfer import TEACHER

HEAD = ("student", "speed", "seeds", "top-1, %", "least to most", "beside the teacher", "beside", "agreement, %")


@dataclass(frozen=True)
class Seeds:
    """One student, trained with one seed or several.

    Attributes:
        model: its name, without that of the variant.
        top1: in per cent, for each seed.
        agreement: with the teacher's first answers, in per cent, the mean over the seeds.
        right: of each photograph, the share of seeds that get it right.
    """

    model: str
    top1: tuple[float, ...]
    agreement: float
    right: np.ndarray

    @property
    def mean(self) -> float:
        return fmean(self.top1)


def over_seeds(rows: Iterable[dict[str, Any]], part: str) -> dict[str, Seeds]:
    """Rows of the same student with other seeds, put together by name.

    Args:
        rows: of a study on photographs.
        part: the photographs that they are judged by: judge or test.

    >>> row = {"model": "160 px", "judge_top1": 50.0, "judge_agreement": 80.0, "judge_right": "a0"}
    >>> over_seeds([row | {"seed": 0}, row | {"seed": 1, "judge_top1": 50.0}], "judge")["160 px"].top1
    (50.0, 50.0)
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(", ".join(filter(None, (row["model"], row.get("variant")))), []).append(row)
    return {
        name: Seeds(
            same[0]["model"], tuple(row[f"{part}_top1"] for row in same),
            fmean(row[f"{part}_agreement"] for row in same), np.mean([answers(row, part) for row in same], axis=0),
        )
        for name, same in found.items()
    }  # fmt: skip


def seeds(
    files: tuple[Path, ...], times: Path | None = None, pixels: str = "fewer pixels, 2", folder: Path = Path("results")
) -> None:
    """Print the students of one study or several files of it as a table in Markdown, the seeds put together.

    Example: python -m lab seeds --files results/study_pets.json --times results/lean_search_cpu.json

    Args:
        files: Result files of `python -m lab imagenet`, or that of `python -m lab transfer`.
        times: A file of `python -m lab plans --step check` or `python -m lab imagenet-times`, for the speeds.
        pixels: The student that reads fewer pixels, which the others are compared with.
        folder: Where the teacher's answers to the ImageNet photographs are.
    """
    rows = [row for file in files for row in read_rows(file)]
    part = "test" if any("test_top1" in row for row in rows) else "judge"
    students = over_seeds(rows, part)
    taught = students.pop(TEACHER, None)
    teacher = taught.right if taught is not None else teacher_answers(folder)
    if pixels not in students:
        raise ValueError(f"there is no student '{pixels}'; there are: {', '.join(students)}")
    speeds = speeds_of(read_rows(times)) if times is not None else {}
    console().print(table(students, teacher, pixels, speeds), soft_wrap=True, highlight=False)


def speeds_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Model → times as fast as the optimised teacher."""
    return {row["model"]: times_as_fast(row) for row in rows}


def times_as_fast(row: Mapping[str, Any]) -> float:
    """The speed over the optimised teacher, as `imagenet-times` and `plans --step check` write it."""
    return row["over_own"] if "over_own" in row else row["speedup"]


def table(students: Mapping[str, Seeds], teacher: np.ndarray, pixels: str, speeds: Mapping[str, float]) -> str:
    """The students in Markdown, the most accurate first.

    Args:
        students: name → what was found.
        teacher: the share of its seeds that get each photograph right.
        pixels: the student that the others are compared with.
        speeds: model → times as fast as the optimised teacher; those that are missing stay empty.
    """
    head = [f"{cell} {pixels}" if cell == "beside" else cell for cell in HEAD]
    lines = [
        f"| {' | '.join(head)} |",
        "| --- " * len(head) + "|",
        f"| the teacher | 1.00x | | {100 * teacher.mean():.1f} | | | | 100.0 |",
    ]
    for name, each in sorted(students.items(), key=lambda one: -one[1].mean):
        speed = speeds.get(each.model)
        lines.append(
            f"| {name} | {'' if speed is None else f'{speed:.2f}x'} | {len(each.top1)} | {each.mean:.1f} | "
            f"{min(each.top1):.1f} to {max(each.top1):.1f} | {difference(each.right, teacher)} | "
            f"{'' if name == pixels else difference(each.right, students[pixels].right)} | {each.agreement:.1f} |"
        )
    return "\n".join(lines)
