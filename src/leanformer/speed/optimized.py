"""A model with its fastest way to run on one device: a value like any other, that can be saved, loaded and exported."""

import copy
import dataclasses
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from rich.table import Table
from torch import Tensor, nn

from ..core import card_of, set_card
from ..measure.terminal import Printed
from .compiled import Compiled, Graph


@dataclasses.dataclass
class Attempt:
    """One form of the whole model that was timed.

    Attributes:
        step: what was new in it.
        seconds: time of a batch.
        error: of the outputs, as a share of their norm.
        kept: whether the step was taken.
    """

    step: str
    seconds: float
    error: float
    kept: bool


@dataclasses.dataclass
class Timed:
    """One module that was timed alone, as it is and as a step would have it.

    Attributes:
        step: the step's name.
        module: the kind of module, and the shape of what it takes.
        places: how many such modules there are in the model.
        before: seconds of a call as it is.
        after: seconds of a call as the step would have it.
        kept: whether the step was taken there.
    """

    step: str
    module: str
    places: int
    before: float
    after: float
    kept: bool


@dataclasses.dataclass
class Choice(Printed):
    """What was chosen, and what each step gained.

    Attributes:
        batch: the batch size that was optimised for.
        steps: names of the steps taken, in their order.
        places: for steps taken in some places alone, the paths of the modules there.
        graph: whether a CUDA graph is replayed.
        attempts: whole models that were timed.
        timed: modules that were timed alone.
        remembered: whether the choice comes from an earlier run.
        error: of the outputs against the plain model in float32, as a share of their norm, tokens chosen alike.
        differing: images of the first sixteen whose tokens rounding makes the model choose otherwise.
    """

    batch: int
    steps: list[str] = dataclasses.field(default_factory=list)
    places: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    graph: bool = False
    attempts: list[Attempt] = dataclasses.field(default_factory=list)
    timed: list[Timed] = dataclasses.field(default_factory=list)
    remembered: bool = False
    error: float | None = None
    differing: int = 0

    def __rich__(self) -> Table:
        title = f"optimize, batch {self.batch}{', remembered from an earlier run' if self.remembered else ''}"
        title += "" if self.error is None else f": {', '.join(self.steps) or 'torch.compile'}, error {self.error:.1e}"
        title += f", tokens chosen otherwise in {self.differing} images" if self.differing else ""
        table = Table("step", "where", "img/s or µs", "time", "error", "", title=title, title_justify="left")
        for each in self.timed:
            share, kept = f"{each.after / each.before:.1%}", "kept" if each.kept else "no gain"
            where = f"{each.module} in {each.places} places"
            table.add_row(each.step, where, f"{1e6 * each.after:,.0f} µs", share, "", kept)
        first = self.attempts[0].seconds if self.attempts else 0.0
        for attempt in self.attempts:
            rate, share = f"{self.batch / attempt.seconds:,.0f}", f"{attempt.seconds / first:.1%}"
            kept = "kept" if attempt.kept else "no gain"
            table.add_row(attempt.step, "the model", rate, share, f"{attempt.error:.1e}", kept)
        return table

    def as_json(self) -> dict[str, Any]:
        """All but what is found out anew each time, as JSON values."""
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name not in ("batch", "remembered", "error", "differing")
        }

    @classmethod
    def from_json(cls, batch: int, data: dict[str, Any]) -> "Choice":
        """The way back from `as_json`."""
        attempts = [Attempt(**each) for each in data.get("attempts", [])]
        timed = [Timed(**each) for each in data.get("timed", [])]
        return cls(batch, list(data["steps"]), dict(data.get("places", {})), bool(data["graph"]), attempts, timed)


class Optimized(nn.Module):
    """A model with its fastest way to run, made by `lf.optimize` or `lf.load`.

    It takes images of any floating dtype on any device. On a GPU a batch of the tuned size or less is one replay of a
    graph; larger ones, and images of another size, are compiled when they first come. It stays in evaluation mode, on
    its device and in its dtype. `lf.save`, `lf.export`, `lf.describe` and `lf.kept_patches` take it.

    Args:
        compiled: the rewritten model.
        plain: the fused model that it was made from, on the CPU.
        choice: what was chosen.
        example: a batch of the tuned size, laid out in memory as the model wants it.
    """

    def __init__(self, compiled: Compiled, plain: nn.Module, choice: Choice, example: Tensor):
        super().__init__()
        self.module = compiled.module
        self.choice = choice
        self.num_classes = getattr(plain, "num_classes", None)
        self._plain = (plain,)  # in a tuple it is no part of this module's weights
        self._compiled = compiled
        self._example = example
        self._layout = torch.contiguous_format if example.is_contiguous() else torch.channels_last
        self._inputs = example.clone() if choice.graph else None
        self._graph: Graph | None = None
        self._one_at_a_time = threading.Lock()  # all calls share the memory that the graph reads and writes
        self._stream: torch.cuda.Stream | None = None  # of the last call
        self.eval()
        self.recaptured()

    def forward(self, images: Tensor) -> Tensor:
        images = self._taken(images)
        if self._graph is None or not self._fits(images):
            return self._compiled(images)
        assert self._inputs is not None
        with self._one_at_a_time, torch.inference_mode():
            self._wait_for_last_call()
            self._inputs[: len(images)].copy_(images)
            return self._graph()[: len(images)].clone()

    def _wait_for_last_call(self) -> None:
        """On the device, where it came on another stream: it may still be reading and writing the same memory.

        Not while a caller records a graph of its own, in which nothing outside of it can be waited for.
        """
        if torch.cuda.is_current_stream_capturing():
            return
        stream = torch.cuda.current_stream(self._example.device)
        if self._stream is not None and self._stream != stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    def plain_form(self) -> nn.Module:
        """The fused model that this one computes, in plain torch, on the CPU."""
        return self._plain[0]

    def recaptured(self) -> "Optimized":
        """Itself, its graph recorded again: needed once the weights lie elsewhere in memory."""
        if self._inputs is not None:
            self._graph = Graph(self._compiled, (self._inputs,))
        return self

    def on(self, images: Tensor, graph: bool = True) -> Callable[[], Tensor]:
        """A call that answers for these images, for timing: where there is a graph, its replay alone.

        Args:
            images: a batch; with a graph, of the tuned size.
            graph: False for the compiled form even where there is a graph.
        """
        images = self._taken(images)
        if not graph or self._graph is None or images.shape != self._example.shape:
            return lambda: self._compiled(images)
        assert self._inputs is not None
        self._inputs.copy_(images)
        return lambda: self._graph()  # type: ignore[misc]  # holds this model, so what the graph reads stays

    def train(self, mode: bool = True) -> "Optimized":
        """Evaluation mode, whatever is asked for: there is nothing to train in a fast form."""
        return super().train(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Optimized":
        compiled = Compiled(copy.deepcopy(self.module, memo))
        new = Optimized(compiled, copy.deepcopy(self._plain[0], memo), copy.deepcopy(self.choice), self._example)
        return set_card(new, card_of(self))  # type: ignore[return-value]

    def load_state_dict(self, *given: Any, **named: Any) -> NoReturn:
        """Refused: the plain form, which is what files and other formats are made from, would keep its weights."""
        raise ValueError(
            "weights are not loaded into an optimised model: load them into its plain form and give that to lf.optimize"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an optimised model cannot be pickled: write it with lf.save and read it with lf.load")

    def _apply(self, fn: Any, recurse: bool = True) -> "Optimized":
        probe = self._example[:0]
        moved = fn(probe)
        if moved.device != probe.device or moved.dtype != probe.dtype:
            raise ValueError(
                f"this model was optimised for {probe.device} in {probe.dtype}; for another device or dtype give its "
                "plain form to lf.optimize"
            )
        return self

    def _taken(self, images: Tensor) -> Tensor:
        if not images.is_floating_point():
            raise ValueError(f"give normalised images in a floating dtype, not {images.dtype}")
        return images.to(self._example.device, self._example.dtype).contiguous(memory_format=self._layout)

    def _fits(self, images: Tensor) -> bool:
        return images.shape[1:] == self._example.shape[1:] and 0 < len(images) <= len(self._example)
