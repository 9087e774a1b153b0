"""What modules take where they will run: compiled by torch, exported to another runtime, or only counted.

torch        optimised by `lf.optimize`; parts compiled, and on a GPU in a graph
eager        torch as it is
onnxruntime, openvino, …    exported, and run by that runtime on the CPU
macs         counted, not timed: the same on every machine, and blind to everything but multiplications
"""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..core import input_of
from ..export import RUNTIMES, Run
from ..export import Target as Format
from ..export.source import quiet, source_of, trace
from ..measure import count
from ..measure.graphs import capture
from ..measure.timing import Timing, interleave
from ..speed import optimize, rewritten

SAMPLE = 0.03
"""Seconds that one repeat of one part runs at least: there are many parts, and whole models set their sum right."""
MACS_A_SECOND = 1e12
"""Of the imaginary chip of the runtime 'macs'."""
Call = Callable[[], Any]


@dataclass(frozen=True)
class Place:
    """Where a model will run.

    Attributes:
        device: cpu, cuda, …
        batch: images at a time.
        dtype: of weights and images.
    """

    device: torch.device
    batch: int
    dtype: torch.dtype


class Part(NamedTuple):
    """A piece of a model and what comes into it; pieces of one `family` differ in the number of tokens alone."""

    module: nn.Module
    x: Tensor
    family: Any


@dataclass(frozen=True)
class Clock:
    """Times models and parts of models at one place; subclasses say how they run there.

    Attributes:
        place: device, batch and dtype.
        repeats: how often each model is timed, in turn with the others.
    """

    place: Place
    repeats: int = 7
    counts: ClassVar[tuple[float, ...]] = (1.0, 0.82, 0.65, 0.5, 0.36, 0.24, 0.15, 0.06)
    """Shares of the most tokens at which parts are timed; what reduces in every block ends with few."""

    @property
    def in_steps(self) -> bool:
        """Whether time has steps over the number of tokens: a GPU works in tiles."""
        return self.place.device.type != "cpu"

    def whole(self, model: nn.Module, folder: Path) -> Call:
        """A call of a fused model on a batch, as a user would make it; `folder` is for files."""
        raise NotImplementedError

    def part(self, part: Part, varies: bool, folder: Path) -> Call:
        """A call of a part; `varies` where the same part is called with other numbers of tokens too."""
        raise NotImplementedError

    def form(self, module: nn.Module) -> nn.Module:
        """A fused model or part as it will run, where this place has a faster form of it."""
        return module

    def models(self, models: Mapping[Any, nn.Module], done: Callable[[], None] = lambda: None) -> dict[Any, Timing]:
        """Seconds a batch of each fused model, timed in turn.

        Args:
            models: fused models by any name.
            done: called when one more of them is ready to be timed, and when all have had one more turn.
        """
        with tempfile.TemporaryDirectory() as folder:
            calls = {}
            for name, model in models.items():
                calls[name] = self.whole(model, Path(folder))
                done()
            return interleave(calls, self.place.device, self.repeats, turned=done)

    def parts(self, parts: Mapping[Any, Part], done: Callable[[], None] = lambda: None) -> dict[Any, float]:
        """Seconds a batch of each part, timed in turn.

        Args:
            parts: parts by any name.
            done: called when one more of them is ready to be timed, and when all have had one more turn.
        """
        families = [part.family for part in parts.values()]
        with tempfile.TemporaryDirectory() as folder, _many_graphs():
            calls = {}
            for name, part in parts.items():
                calls[name] = self.part(part, families.count(part.family) > 1, Path(folder))
                calls[name]()  # compiled now
                done()
            timed = interleave(calls, self.place.device, self.repeats, SAMPLE, turned=done)
        return {name: timing.median for name, timing in timed.items()}

    def words(self, seconds: float) -> str:
        """Seconds a batch as people are told of them."""
        return f"{three_digits(seconds * 1e3)} ms a batch"

    def images(self, model: nn.Module) -> Tensor:
        """A batch of noise for a model."""
        shape = (self.place.batch, *input_of(model)["input_size"])
        return torch.randn(shape, device=self.place.device).to(self.place.dtype)


class TorchClock(Clock):
    """Models as `lf.optimize` leaves them; parts compiled, and on a GPU in a graph."""

    def form(self, module: nn.Module) -> nn.Module:
        return rewritten(module)

    def whole(self, model: nn.Module, folder: Path) -> Call:
        place, images = self.place, self.images(model)
        kind = str(place.dtype).removeprefix("torch.")
        fast = optimize(model, device=place.device, batch=place.batch, dtype=kind, search=False)
        return lambda: fast(images)

    def part(self, part: Part, varies: bool, folder: Path) -> Call:
        call = _without_gradients(torch.compile(part.module.eval(), dynamic=varies), part.x)
        return capture(call, self.place.device) if self.place.device.type == "cuda" else call


class EagerClock(Clock):
    """Torch as it is, operator by operator."""

    def whole(self, model: nn.Module, folder: Path) -> Call:
        moved = copy.deepcopy(model).eval().to(self.place.device, self.place.dtype)
        return _without_gradients(moved, self.images(model))

    def part(self, part: Part, varies: bool, folder: Path) -> Call:
        return _without_gradients(part.module.eval(), part.x)


@dataclass(frozen=True)
class ExportedClock(Clock):
    """Models and parts exported to a format, and run by its runtime on the CPU.

    Attributes:
        format: the format of the runtime; required.
    """

    format: Format | None = None
    counts: ClassVar[tuple[float, ...]] = (1.0, 0.6, 0.32, 0.15, 0.06)  # each is an export of its own

    def whole(self, model: nn.Module, folder: Path) -> Call:
        images = self.images(model)
        run = self._opened(source_of(copy.deepcopy(model).cpu(), fused=True), images, folder)
        return lambda: run(images)

    def part(self, part: Part, varies: bool, folder: Path) -> Call:
        run = self._opened(part.module, part.x, folder)
        return lambda: run(part.x)

    def _opened(self, module: nn.Module, x: Tensor, folder: Path) -> Run:
        """A module in its runtime; it is timed alone, and not compared with torch as files are that leave the house."""
        assert self.format is not None
        path = folder / f"{len(list(folder.iterdir()))}{self.format.suffix}"
        largest = None if self.format.max_batch is None else max(len(x), self.format.max_batch)
        with quiet(self.format.name, type(module).__name__):
            self.format.write(trace(module.eval(), tuple(x.shape[1:]), largest), path, {})
            return self.format.open(path)


class MacsClock(Clock):
    """Counts multiply-accumulates and calls them seconds of an imaginary chip."""

    counts: ClassVar[tuple[float, ...]] = (1.0, 0.6, 0.32, 0.15, 0.06)
    known: ClassVar[dict[str, int]] = {}
    """MACs of what was counted before, by its structure."""

    def words(self, seconds: float) -> str:
        millions = seconds * MACS_A_SECOND / self.place.batch / 1e6
        return f"{three_digits(millions)} million multiplications an image"

    def models(self, models: Mapping[Any, nn.Module], done: Callable[[], None] = lambda: None) -> dict[Any, Timing]:
        seconds = {name: self._seconds(model, tuple(input_of(model)["input_size"])) for name, model in models.items()}
        return {name: Timing([each] * self.repeats) for name, each in seconds.items()}

    def parts(self, parts: Mapping[Any, Part], done: Callable[[], None] = lambda: None) -> dict[Any, float]:
        return {name: self._seconds(part.module, tuple(part.x.shape[1:])) for name, part in parts.items()}

    def _seconds(self, module: nn.Module, size: tuple[int, ...]) -> float:
        weights = [tuple(weight.shape) for weight in module.parameters()]  # a class token or registers are no modules
        structure = f"{module!r} {weights} {size}"
        if structure not in self.known:
            self.known[structure] = count(module, size).macs
        return self.place.batch * self.known[structure] / MACS_A_SECOND


CLOCKS: dict[str, type[Clock]] = {"torch": TorchClock, "eager": EagerClock, "macs": MacsClock}


def clock_for(place: Place, runtime: str = "torch", repeats: int = 7) -> Clock:
    """The clock of a runtime.

    Args:
        place: device, batch and dtype.
        runtime: torch, eager, macs, or the name of a runtime that models are exported to; onnx stands for onnxruntime.
        repeats: how often each model is timed.

    Raises:
        ValueError: for a runtime that is unknown, not installed, or not for this place.

    >>> clock_for(Place(torch.device("cpu"), 8, torch.float32), "eager").repeats
    7
    """
    if runtime in CLOCKS:
        return CLOCKS[runtime](place, repeats)
    by_format = {target.name: target for target in RUNTIMES.values() if target.name not in CLOCKS}
    format = {**RUNTIMES, **by_format}.get(runtime)
    if format is None:
        raise ValueError(f"unknown runtime '{runtime}'; known: {', '.join(dict.fromkeys([*CLOCKS, *RUNTIMES]))}")
    if place.device.type != "cpu":
        raise ValueError(f"the runtime {runtime} is timed on a CPU; give device='cpu', or runtime='torch'")
    if place.dtype != torch.float32:
        raise ValueError(f"the runtime {runtime} is timed in float32, not {str(place.dtype).removeprefix('torch.')}")
    format.require()
    return ExportedClock(place, repeats, format)


def three_digits(number: float) -> str:
    """A number as people read it.

    Args:
        number: 0 or more.

    >>> three_digits(1254.2), three_digits(0.04213)
    ('1,254', '0.0421')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


@contextmanager
def _many_graphs() -> Iterator[None]:
    """Within the context the same code may be compiled for many modules and shapes."""
    with torch._dynamo.config.patch(recompile_limit=512, accumulated_recompile_limit=4096):
        yield


def _without_gradients(run: Callable[[Tensor], Any], x: Tensor) -> Call:
    def call() -> Any:
        with torch.inference_mode():
            return run(x)

    return call
