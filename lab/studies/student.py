"""What a study is made of: a teacher, and students that say how they are made from it and what they learn from."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from leanformer.core import Method, apply
from leanformer.measure import choose
from leanformer.train import Recipe

Make = Callable[[nn.Module, int], nn.Module]
LABELS = "cross_entropy"
DISTILLED = "soft"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Student:
    """One row: how the student is made from the trained teacher, and what it learns from."""

    name: str
    make: Make
    """The trained teacher and the number of epochs → the student before training."""
    objective: str | None = None
    """None: the methods' own objective with the teacher; otherwise terms as in `cross_entropy + soft`."""
    teachers: tuple[str, ...] = ("teacher",)
    """The names under which the objective meets the teacher; none trains on labels alone."""
    calibrate: int = 0
    """So many images to fit the new modules on before training."""
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the study's recipe that are other for this student."""
    paper: float | None = None
    """The paper's top-1, on its own data and epochs."""

    @property
    def kind(self) -> str:
        """What the student is, apart from how it learns: students of one kind are equally fast."""
        return self.name.split(",")[0]


def lean_student(name: str, *methods: Method, objective: str | None, fit: int = 0, note: str = "") -> Student:
    """A row; its name before the first comma says what the student is, the rest how it learns.

    >>> lean_student("EViT", objective=DISTILLED).name
    'EViT, distilled'
    """
    alone = objective == LABELS
    return Student(
        name=f"{name}, {note or ('labels' if alone else 'distilled')}",
        make=lambda teacher, epochs: apply(teacher, *methods),
        objective=objective,
        teachers=() if alone else ("teacher",),
        calibrate=fit,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A teacher and its students."""

    name: str
    teacher: Callable[..., nn.Module]
    """Number of classes, and their names where the data have some → the teacher before training."""
    recipe: Recipe
    students: tuple[Student, ...]
    teacher_learning_rate: float | None = None
    """Where it is not the students'."""

    def chosen(self, only: str) -> list[Student]:
        """The students whose name contains one of the texts in `only`, which are parted by |.

        A text that is the whole name of a student means that one alone.
        """
        names = choose((student.name for student in self.students), only)
        return [student for student in self.students if student.name in names]
