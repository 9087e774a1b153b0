"""What whole models take where they will run: optimised by torch, or exported to another runtime."""

import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core import input_of
from ..export import FORMATS, RUNTIMES
from ..measure.timing import Timing, interleave
from ..speed import optimize
from .cost import Place


@dataclass(frozen=True)
class Clock:
    """Times whole models at one place.

    Attributes:
        place: device, batch and dtype.
        runtime: torch (optimised), eager (torch as it is), or the name of a runtime that models are exported to.
        repeats: how often each model is timed, in turn with the others.
    """

    place: Place
    runtime: str = "torch"
    repeats: int = 7

    def __post_init__(self) -> None:
        if self.runtime in ("torch", "eager"):
            return
        if self.runtime not in RUNTIMES:
            raise ValueError(f"unknown runtime '{self.runtime}'; known: torch, eager, {', '.join(RUNTIMES)}")
        if self.place.device.type != "cpu":
            raise ValueError(f"the runtime {self.runtime} is timed on a CPU; give device='cpu', or runtime='torch'")
        RUNTIMES[self.runtime].require()

    def times(self, models: Mapping[Any, nn.Module]) -> dict[Any, Timing]:
        """Seconds a batch of each fused model, timed in turn as a user would call it.

        Args:
            models: fused models by any name.
        """
        with tempfile.TemporaryDirectory() as folder:
            calls = {name: self._call(model, Path(folder)) for name, model in models.items()}
            return interleave(calls, self.place.device, self.repeats)

    def _call(self, model: nn.Module, folder: Path) -> Callable[[], Any]:
        place = self.place
        shape = (place.batch, *input_of(model)["input_size"])
        images = torch.randn(shape, device=place.device).to(place.dtype)
        if self.runtime == "eager":
            return _eager(copy.deepcopy(model).eval().to(place.device, place.dtype), images)
        if self.runtime == "torch":
            kind = str(place.dtype).removeprefix("torch.")
            fast = optimize(model, device=place.device, batch=place.batch, dtype=kind, search=False)
            return lambda: fast(images)
        target = RUNTIMES[self.runtime]
        path = folder / f"{len(list(folder.iterdir()))}{target.suffix}"
        run = target.open(FORMATS[target.name](model, path).path)
        return lambda: run(images)


def _eager(model: nn.Module, images: torch.Tensor) -> Callable[[], Any]:
    def call() -> Any:
        with torch.inference_mode():
            return model(images)

    return call
