"""Batches of pixels through the model: copies ahead of the computation, and a report of what the time went to.

    loader ─ pinned pixels ─▶ copy, resize, normalise ─▶ model ─▶ pinned answers ─▶ rows
             batch i + 2      batch i + 1                batch i                    batch i - 1

On a CPU the steps follow each other. A short last batch is filled up with black, so that there is one shape to compile.
"""

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .answers import Answers, Found
from .reading import PixelBatch
from .views import View

AHEAD = 2
"""Batches that a GPU has in hand while the next one is read."""
NOT_FINITE = "the model's answer is not a finite number"


@dataclasses.dataclass
class ResultBatch:
    """Answers to some rows that follow each other.

    Attributes:
        first: The number of the first row.
        keys: The names of the rows.
        errors: Why there is no answer, row by row; None where there is one.
        columns: The answers, by the names of the fields; what stands in a row with an error means nothing.
    """

    first: int
    keys: list[str]
    errors: list[str | None]
    columns: dict[str, Any]

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict a row: path, the answers (None in a row with an error), error."""
        for index, (key, error) in enumerate(zip(self.keys, self.errors)):
            values = {name: None if error else _value(column[index]) for name, column in self.columns.items()}
            yield {"path": key, **values, "error": error}


def _value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


@dataclasses.dataclass
class Report:
    """What a run did, and what its time went to.

    Attributes:
        rows: Rows that this run computed.
        failed: Those of them without an answer.
        seconds: From the first batch that was asked for to the last row.
        shares: Share of the time spent waiting for each stage: reading, decoding, transfer, model, writing.
        total: Rows of the whole output, with those that were there already.
        output: Where the rows are.
    """

    rows: int = 0
    failed: int = 0
    seconds: float = 0.0
    shares: dict[str, float] = dataclasses.field(default_factory=dict)
    total: int = 0
    output: str = ""

    @property
    def bound(self) -> str:
        """The stage that took the largest share of the time."""
        return max(self.shares, key=lambda stage: self.shares[stage]) if self.shares else "nothing"

    def __str__(self) -> str:
        rate = self.rows / self.seconds if self.seconds else 0.0
        split = ", ".join(f"{stage} {share:.0%}" for stage, share in self.shares.items())
        earlier = f", {self.total - self.rows:,} were there already" if self.total > self.rows else ""
        failed = f"; {self.failed:,} without an answer, see the column error" if self.failed else ""
        return (
            f"{self.rows:,} rows in {self.seconds:.1f} s, {rate:,.0f} a second{earlier}{failed}; "
            f"bounded by {self.bound} ({split})"
        )


class Clock:
    """Seconds by stage, as the process that collects the rows waits for them."""

    stages: tuple[str, ...] = ("reading", "decoding", "transfer", "model", "writing")

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(self.stages, 0.0)
        self.begun = time.perf_counter()
        self.rows = self.failed = 0

    def restart(self) -> None:
        """Count from now on: what came before was getting ready."""
        self.begun = time.perf_counter()

    @contextlib.contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Count what happens within the context for a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def split(self, seconds: float, parts: dict[str, float]) -> None:
        """Divide a wait among stages in proportion to what each took elsewhere."""
        whole = sum(parts.values())
        for stage, part in parts.items():
            self.seconds[stage] += seconds * (part / whole if whole else 1 / len(parts))

    def report(self, total: int = 0, output: str = "") -> Report:
        """The report up to now."""
        spent = sum(self.seconds.values()) or 1.0
        shares = {stage: seconds / spent for stage, seconds in self.seconds.items()}
        seconds = time.perf_counter() - self.begun
        return Report(self.rows, self.failed, seconds, shares, max(total, self.rows), output)


class Runner:
    """Sends batches through a task on its device.

    Args:
        answers: The task.
        view: How the model sees pictures.
        device: Where it computes.
        size: Images of a whole batch.
    """

    def __init__(self, answers: Answers, view: View, device: torch.device, size: int):
        self.answers, self.view, self.device, self.size = answers, view, device, size
        self.copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, batches: Iterable[PixelBatch], clock: Clock) -> Iterator[ResultBatch]:
        """The answers to each batch, in order.

        Args:
            batches: Pixels, as the loader gives them.
            clock: Where the time is noted.
        """
        pending: deque[_Pending] = deque()
        waiting = iter(batches)
        while True:
            start = time.perf_counter()
            batch = next(waiting, None)
            if batch is None:
                break
            clock.split(time.perf_counter() - start, {"reading": batch.reading, "decoding": batch.decoding})
            pending.append(self._launch(batch, clock))
            if len(pending) > (AHEAD if self.copies else 0):
                yield self._collect(pending.popleft(), clock)
        while pending:
            yield self._collect(pending.popleft(), clock)

    def one(self, batch: PixelBatch, clock: Clock) -> ResultBatch:
        """The answers to one batch, at once."""
        return self._collect(self._launch(batch, clock), clock)

    @torch.inference_mode()
    def _launch(self, batch: PixelBatch, clock: Clock) -> "_Pending":
        if self.copies is None:
            with clock.during("transfer"):
                moved = [(at.to(self.device), images.to(self.device)) for at, images in batch.groups]
            with clock.during("decoding"):
                images = self.view.together(moved, self.size, self.device)
            with clock.during("model"):
                found = self.answers.compute(images)
                host = {name: _on_host(value, len(batch), Tensor.cpu) for name, value in found.items()}
            return _Pending(batch, host, ())
        return self._launch_ahead(batch)

    def _launch_ahead(self, batch: PixelBatch) -> "_Pending":
        """The same without waiting for the model: copies and resizing have a stream of their own.

        Resizing hands over small numbers, for which the host waits on that stream, not on the model's.
        """
        assert self.copies is not None
        compute = torch.cuda.current_stream(self.device)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        with torch.cuda.stream(self.copies):
            marks[0].record()
            moved = [(at.to(self.device, non_blocking=True), images.to(self.device, non_blocking=True))
                     for at, images in batch.groups]  # fmt: skip
            seen = self.view.together(moved, self.size, self.device)
            marks[1].record()
        compute.wait_event(marks[1])
        for images in [seen] if isinstance(seen, Tensor) else filter(lambda each: each is not None, seen):
            images.record_stream(compute)  # its memory is not given to the next batch before the model has read it
        marks[2].record(compute)
        found = self.answers.compute(seen)
        host = {name: _on_host(value, len(batch), _to_pinned) for name, value in found.items()}
        marks[3].record(compute)
        return _Pending(batch, host, tuple(marks))

    def _collect(self, pending: "_Pending", clock: Clock) -> ResultBatch:
        if pending.marks:
            start = time.perf_counter()
            pending.marks[3].synchronize()
            begun, seen, ready, done = pending.marks
            took = {"transfer": begun.elapsed_time(seen), "model": ready.elapsed_time(done)}
            clock.split(time.perf_counter() - start, took)
        batch = pending.batch
        found = {name: value.numpy() if isinstance(value, Tensor) else [each.numpy() for each in value]
                 for name, value in pending.host.items()}  # fmt: skip
        errors = _not_finite(found, batch.errors)
        with clock.during("writing"):
            result = ResultBatch(batch.first, batch.keys, errors, self.answers.columns(found))
        clock.rows += len(batch)
        clock.failed += sum(error is not None for error in errors)
        return result


@dataclasses.dataclass
class _Pending:
    batch: PixelBatch
    host: Found
    marks: tuple[Any, ...]
    """CUDA events: copies begun, images ready, model begun, answers on the host."""


def _on_host(value: Tensor | list[Tensor], rows: int, copy: Callable[[Tensor], Tensor]) -> Tensor | list[Tensor]:
    """The entries of the first rows, copied."""
    return copy(value[:rows]) if isinstance(value, Tensor) else [copy(each) for each in value[:rows]]


def _to_pinned(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _not_finite(found: dict[str, Any], errors: list[str | None]) -> list[str | None]:
    """The errors, with those rows added whose answer is no number: weights or half precision overflowed."""
    good = np.ones(len(errors), bool)
    for column in found.values():
        if isinstance(column, np.ndarray) and column.dtype.kind == "f":
            good &= np.isfinite(column).all(axis=tuple(range(1, column.ndim)))
    return [error or (None if fine else NOT_FINITE) for error, fine in zip(errors, good.tolist())]
