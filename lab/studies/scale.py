"""At which size a study is run, and by which command a reader repeats a row of it."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import torch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """At which size a study is run."""

    data: str
    epochs: int
    teacher_epochs: int
    seeds: tuple[int, ...] = (0,)
    batch_size: int = 256
    learning_rate: float | None = None
    images: int | None = None
    """Only the first so many training images."""
    first_classes: int | None = None
    """Only the images of the first so many classes."""
    device: str | None = None
    precision: str = "no"
    compile: bool = False
    command: str = ""
    """What a reader types for any row, but for the words of that row."""

    @property
    def torch_device(self) -> torch.device:
        """The device that was asked for, or the fastest there is."""
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def facts(self) -> dict[str, Any]:
        """What a row must share with another one to be the same run."""
        name = Path(self.data.removeprefix("pack:")).name
        return {
            "epochs": self.epochs,
            "data": name,
            "images": self.images,
            "first_classes": self.first_classes,
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
        }

    def command_of(self, student: str, seed: int) -> str:
        """The command that trains this row alone."""
        rate = "" if self.learning_rate is None else f" --learning-rate {self.learning_rate:g}"
        return f"{self.command}{rate} --epochs {self.epochs} --seeds {seed} --only {shlex.quote(student)}".strip()
