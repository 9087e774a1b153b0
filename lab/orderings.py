"""python -m lab orderings: which of a paper's orderings a study shows, and which it turns round.

    x over y   the paper has x above y   holds: so have we   opposite: we have y above x   level: seeds hide which

Two students are told apart where the difference of their means is more than twice its standard error, which follows
from how far the seeds of one student lie apart, all students of the file together. With one seed nothing is sure: what
is above is said, and no more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from leanformer.measure import console, read_rows

from .studies.digest import by_schedule
from .studies.evit import ORACLE, evit
from .tables import as_table

HOLDS, OPPOSITE, LEVEL = "holds", "opposite", "level"


@dataclass(frozen=True)
class Trained:
    """A student with the top-1 that the paper has for it.

    Attributes:
        name: in the study.
        paper: the paper's top-1, on its own data and epochs.
        top1: seed → ours.
        runs: the runs that its rows are of; rows of several tables may be one run.
        schedule: its epochs and learning rate; students of other schedules are not compared.
    """

    name: str
    paper: float
    top1: Mapping[int, float]
    runs: frozenset[str]
    schedule: tuple[Any, ...] = ()

    @property
    def table(self) -> str:
        """The table of the paper that it stands in; students of no table are compared with each other."""
        return self.name.split("/")[0] if "/" in self.name else ""

    @property
    def mean(self) -> float:
        return fmean(self.top1.values())


@dataclass(frozen=True)
class Pair:
    """Two students of one table, of which the paper has the first above the second."""

    above: Trained
    below: Trained
    verdict: str

    def line(self) -> dict[str, str]:
        """Its row of the table that is printed."""
        paper, ours = self.above.paper - self.below.paper, self.above.mean - self.below.mean
        return {"above in the paper": self.above.name, "below": self.below.name, "paper": f"{paper:+.1f}",
                "ours": f"{ours:+.2f}", "verdict": self.verdict}  # fmt: skip


def orderings(file: Path, table: str = "", apart: float = 0.2, pairs: bool = False) -> None:
    """Print, table by table, how many of the paper's orderings hold, and those that are the other way round.

    Example: python -m lab orderings --file results/study_sit.json --table table7

    Args:
        file: The result file of `python -m lab study`.
        table: Only this table of the paper.
        apart: Students that lie nearer in the paper than this many points are not compared.
        pairs: Print those that hold or are level as well.
    """
    students = students_of(read_rows(file))
    noise = seed_noise(students)
    found = [pair for pair in compared(students, noise, apart) if table in ("", pair.above.table)]
    if not found:
        raise ValueError(f"{file} has no two students of one table that its paper tells apart")
    shown = [pair.line() for pair in found if pairs or pair.verdict == OPPOSITE]
    if shown:
        console().print(as_table("", shown, left=("above in the paper", "below", "verdict")))
    seeds = "one seed, nothing is sure" if noise is None else f"seeds of one student lie {noise:.2f} points apart"
    for line in (*summaries(found), f"({seeds})"):
        console().print(line, highlight=False, soft_wrap=True)


def students_of(rows: Sequence[dict[str, Any]]) -> list[Trained]:
    """The students that the paper has a number for, their seeds together.

    EViT's rows that start from the trained DeiT have the numbers of those that start from random weights.
    """
    known = {student.name: student.paper for student in evit().students}
    found = []
    for same in by_schedule(rows):
        name, paper = same[0]["student"], same[0]["paper_top1"]
        if paper is None and name.endswith(ORACLE):
            paper = known.get(name.removesuffix(ORACLE))
        if paper is not None:
            top1 = {row["seed"]: row["top1"] for row in same}
            runs = frozenset(row["run"] for row in same if "run" in row)
            found.append(Trained(name, paper, top1, runs, (same[0]["epochs"], same[0].get("learning_rate"))))
    return found


def seed_noise(students: Sequence[Trained]) -> float | None:
    """The standard deviation over seeds, of all students together; None where each has one seed.

    >>> pair = [Trained("a", 1.0, {0: 50.0, 1: 52.0}, frozenset()), Trained("b", 2.0, {0: 40.0}, frozenset())]
    >>> round(seed_noise(pair), 3)
    1.414
    """
    several = [each for each in students if len(each.top1) > 1]
    free = sum(len(each.top1) - 1 for each in several)
    if not free:
        return None
    return math.sqrt(sum((len(each.top1) - 1) * variance(each.top1.values()) for each in several) / free)


def compared(students: Sequence[Trained], noise: float | None, apart: float) -> list[Pair]:
    """All pairs of one table and schedule that the paper tells apart and that are not one run.

    Args:
        students: all of a study.
        noise: what `seed_noise` says.
        apart: points that must lie between two in the paper.
    """
    found = []
    for one, other in combinations(students, 2):
        alike = (one.table, one.schedule) == (other.table, other.schedule)
        if alike and abs(one.paper - other.paper) >= apart and not one.runs & other.runs:
            above, below = (one, other) if one.paper > other.paper else (other, one)
            found.append(Pair(above, below, _verdict(above, below, noise)))
    return found


def _verdict(above: Trained, below: Trained, noise: float | None) -> str:
    more = above.mean - below.mean
    error = 0.0 if noise is None else noise * math.sqrt(1 / len(above.top1) + 1 / len(below.top1))
    if abs(more) <= 2 * error:
        return LEVEL
    return HOLDS if more > 0 else OPPOSITE


def summaries(pairs: Sequence[Pair]) -> list[str]:
    """A line for each table.

    >>> one, other = (Trained(f"table1/{n}", n, {0: n}, frozenset()) for n in (1.0, 2.0))
    >>> summaries([Pair(other, one, HOLDS)])
    ['table1: of 1 orderings 1 hold, 0 are opposite, 0 level']
    """
    tables = dict.fromkeys(pair.above.table for pair in pairs)
    lines = []
    for table in tables:
        told = [pair.verdict for pair in pairs if pair.above.table == table]
        held, turned, level = (told.count(verdict) for verdict in (HOLDS, OPPOSITE, LEVEL))
        name = f"{table}: " if table else ""
        lines.append(f"{name}of {len(told)} orderings {held} hold, {turned} are opposite, {level} level")
    return lines
