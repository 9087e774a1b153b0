"""What a study is made of: a teacher, and students that say how they are made from it and what they learn from."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from leanformer.core import Method, apply
from leanformer.measure import choose
from leanformer.train import Recipe

Make = Callable[[nn.Module, int], nn.Module]
Build = Callable[..., nn.Module]
"""Number of classes, and their names where the data have some → a teacher before training."""
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
    """The names under which the objective meets the teacher that the student is made from; none trains on labels."""
    made_from: str = ""
    """Which of the study's other teachers the student is made from; by default the study's own."""
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Further names under which the objective meets teachers → which of the study's those are; "" is its own."""
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

    @property
    def needs(self) -> set[str]:
        """The study's other teachers that have to be trained for this row."""
        return {self.made_from, *self.others.values()} - {""}


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
    teacher: Build
    recipe: Recipe
    students: tuple[Student, ...]
    teacher_learning_rate: float | None = None
    """Where it is not the students'."""
    others: Mapping[str, Build] = dataclasses.field(default_factory=dict)
    """Further teachers by name, built and trained as the teacher is, once a row needs them."""

    def untrained(self, name: str, num_classes: int, names: Sequence[str] | None = None) -> nn.Module:
        """A teacher before training.

        Args:
            name: one of the others, or "" for the study's own.
            num_classes: the number of classes.
            names: what they are called, where the data say.
        """
        return (self.others[name] if name else self.teacher)(num_classes, names)

    def chosen(self, only: str) -> list[Student]:
        """The students whose name contains one of the texts in `only`, which are parted by |.

        A text that is the whole name of a student means that one alone.
        """
        names = choose((student.name for student in self.students), only)
        return [student for student in self.students if student.name in names]
