"""At which size a study is run, and by which command a reader repeats a row of it."""

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from leanformer.data import Arrays, Data, open_data

from ..arguments import device_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """At which size a study is run."""

    data: str
    """A data set with the splits train and val: a folder, or pack:PATH."""
    epochs: int = 12
    """Epochs of each student."""
    teacher_epochs: int = 12
    """Epochs of the teacher."""
    seeds: tuple[int, ...] = (0,)
    """Each student is trained once for every seed."""
    batch_size: int = 256
    """Images an update."""
    learning_rate: float | None = None
    """The students' instead of the study's own; the teacher's as well where the study has none for it."""
    images: int | None = None
    """Only the first so many training images."""
    first_classes: int | None = None
    """Only the images of the first so many classes."""
    device: str | None = None
    """cpu, cuda, …; the fastest there is by default."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """no, bf16 or fp16."""
    compile: bool = False
    """Compile teacher and student for training."""
    command: Annotated[str, tyro.conf.Suppress] = ""
    """What a reader types for any row, but for the words of that row."""

    @property
    def torch_device(self) -> torch.device:
        """The device that was asked for, or the fastest there is."""
        return device_of(self.device)

    def data_sets(self) -> tuple[Data, Data]:
        """The images to train on and those to judge by, cut to the classes and the number that were asked for.

        What is kept as arrays lies on the device, once for all runs.
        """
        train, val = (self._cut(open_data(self.data, split), split) for split in ("train", "val"))
        return self._placed(train), self._placed(val)

    def _placed(self, data: Data) -> Data:
        return data.to(self.torch_device) if isinstance(data, Arrays) else data

    def _cut(self, data: Data, split: str) -> Data:
        images = self.images if split == "train" else None
        if images is None and self.first_classes is None:
            return data
        if not isinstance(data, Arrays):
            raise ValueError("only packs and arrays can be cut to a number of images or classes")
        mine = (data.labels < (self.first_classes or 10**9)).nonzero()[:images, 0]
        names = None if data.classes is None else data.classes[: self.first_classes]
        return Arrays(data.images[mine], data.labels[mine], names, f"{data.name}, cut to {len(mine)} images")

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
