"""Timing that can be trusted: warmed up, repeated, and interleaved, so that a noisy machine hits all alike.

Every call is timed by itself (device events on a GPU, the wall clock on a CPU); throughput comes from whole repeats.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .graphs import Call, capture

Key = TypeVar("Key")
SAMPLE_SECONDS = {"cuda": 0.06, "cpu": 0.15}
"""How long one repeat of one candidate runs at least; a GPU's events are finer than a CPU's clock is steady."""
KEPT_BYTES = 31 << 20
"""A block a little smaller than the largest that a C library's allocator is willing to keep for later (32 MiB)."""
LONG_SECONDS = 0.5
"""A call of this length is a sample by itself; shorter ones are taken by threes at least."""


@dataclass
class Timing:
    """The repeats of one candidate, in seconds a call."""

    repeats: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.repeats)

    @property
    def spread(self) -> float:
        """Half the range of the repeats, as a share of their median."""
        return (max(self.repeats) - min(self.repeats)) / 2 / self.median

    def extend(self, other: "Timing") -> None:
        """Take the repeats of another timing of the same candidate as further ones."""
        self.repeats += other.repeats
        self.calls += other.calls

    def percentile(self, share: float) -> float:
        ordered = sorted(self.calls)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def speedup(self, yardstick: "Timing") -> tuple[float, float]:
        """How many times faster than the yardstick, and half the range of that over its median.

        Turn by turn: what slows the machine for a while slows both, and their ratio stays.

        >>> Timing([1.0, 2.0]).speedup(Timing([3.0, 6.0]))
        (3.0, 0.0)
        """
        ratios = [theirs / mine for theirs, mine in zip(yardstick.repeats, self.repeats, strict=True)]
        median = statistics.median(ratios)
        return median, (max(ratios) - min(ratios)) / 2 / median


class Clock:
    """Marks of time on a device: events in the queue of a GPU, the wall clock elsewhere.

    >>> clock = Clock(torch.device("cpu"))
    >>> clock.seconds(clock.mark(), clock.mark()) >= 0
    True
    """

    def __init__(self, device: torch.device):
        self.device = device

    def mark(self) -> Any:
        """A mark behind all that the device was asked for until now."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))  # there may be several devices
        return event

    def wait(self) -> None:
        """Return when the device has done what it was asked for; marks can be read then."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def seconds(self, before: Any, after: Any) -> float:
        """The time between two marks."""
        return after - before if self.device.type != "cuda" else before.elapsed_time(after) / 1e3


def interleave(
    candidates: Mapping[Key, Call],
    device: torch.device,
    repeats: int = 7,
    seconds: float | None = None,
    ready: Callable[[], None] | None = None,
    turned: Callable[[], None] = lambda: None,
) -> dict[Key, Timing]:
    """Time all candidates in turn, several times over, after a warm-up of each.

    Args:
        candidates: name → a call without arguments.
        device: where the calls compute.
        repeats: how often each candidate has its turn.
        seconds: how long a turn runs at least; by default SAMPLE_SECONDS of the device.
        ready: called once everything is compiled and only the timing is left.
        turned: called when each has had one more turn.

    >>> timings = interleave({"a": lambda: sum(range(100))}, torch.device("cpu"), repeats=3)
    >>> len(timings["a"].repeats)
    3
    """
    seconds = seconds or SAMPLE_SECONDS.get(device.type, SAMPLE_SECONDS["cpu"])
    settle_allocator()
    if ready is not None:
        for call in candidates.values():
            call()  # what is compiled at the first call is compiled now
        ready()
    counts = {name: _warm_up(call, device, seconds) for name, call in candidates.items()}
    timings = {name: Timing() for name in candidates}
    for turn in range(repeats):
        names = list(candidates)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            calls, total = time_calls(candidates[name], counts[name], device)
            timings[name].repeats.append(total / counts[name])
            timings[name].calls += calls
        turned()
    return timings


def settle_allocator() -> None:
    """Let the allocator keep the memory that is freed from now on, as it does in a process that has run for a while.

    Until a large block was freed once, the C library gives every freed activation back to the system, and each call
    of a model takes thousands of page faults to get it again: what ran before would decide what a small model takes.

    >>> settle_allocator()
    """
    torch.empty(KEPT_BYTES, dtype=torch.uint8).fill_(0)


def time_calls(
    call: Call, count: int, device: torch.device, meanwhile: Callable[[], None] | None = None
) -> tuple[list[float], float]:
    """Seconds of each of several calls in a row and of all together, the device idle before and after.

    Args:
        call: what is timed.
        count: how often it is called.
        device: where it computes.
        meanwhile: called once all calls are made, while a GPU is still at them.

    >>> calls, total = time_calls(lambda: sum(range(100)), 3, torch.device("cpu"))
    >>> len(calls)
    3
    """
    clock = Clock(device)
    clock.wait()
    marks = [clock.mark()]
    for _ in range(count):
        call()
        marks.append(clock.mark())
    if meanwhile is not None:
        meanwhile()
    clock.wait()
    if device.type != "cuda":
        marks[-1] = clock.mark()  # a wall clock does not stand in the device's queue
    return [clock.seconds(a, b) for a, b in pairwise(marks)], clock.seconds(marks[0], marks[-1])


def _warm_up(call: Call, device: torch.device, seconds: float) -> int:
    """Run until times are settled, and return how many calls make one repeat."""
    call()
    _, once = time_calls(call, 1, device)
    if once > LONG_SECONDS:
        return max(1, round(seconds / once))
    call()
    _, total = time_calls(call, 3, device)
    return max(3, min(1000, round(seconds / max(total / 3, 1e-7))))


def prepare(model: nn.Module, images: Tensor, mode: str) -> Call:
    """A call that runs a model on images.

    Args:
        model: the model, on the device and in the dtype of the images.
        images: a batch.
        mode: eager, compiled, or graph: compiled and captured in a CUDA graph, whose replay alone is the call.

    >>> prepare(nn.Linear(2, 2), torch.zeros(1, 2), "eager")().shape
    torch.Size([1, 2])
    """
    if mode not in ("eager", "compiled", "graph"):
        raise ValueError(f"unknown mode '{mode}'; known: eager, compiled, graph")
    if mode == "graph" and images.device.type != "cuda":
        raise ValueError("mode 'graph' needs a CUDA device; on the CPU use eager or compiled")
    run = model if mode == "eager" else torch.compile(model, fullgraph=True, dynamic=False)

    def call() -> Any:
        with torch.inference_mode():
            return run(images)

    return capture(call, images.device) if mode == "graph" else call


def relocate(model: nn.Module, step: int) -> Tensor:
    """Move the weights elsewhere in memory; keep what is returned, or the next call finds the same memory free.

    Small models run some per cent faster or slower by where their weights happen to lie, which no repeat shows while
    they stay there.

    Args:
        model: the model, changed in place.
        step: how many steps of some megabytes further in memory.

    >>> layer = nn.Linear(2, 2)
    >>> before = layer.weight.data_ptr()
    >>> pad = relocate(layer, 1)
    >>> layer.weight.data_ptr() != before
    True
    """
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else None
    pad = torch.empty(step * (3 * 2**20 + 4096), dtype=torch.uint8, device=device)
    copies = [tensor.data.clone() for tensor in tensors]  # all, before the first old one is free
    for tensor, copied in zip(tensors, copies, strict=True):
        tensor.data = copied
    return pad


@contextlib.contextmanager
def shared_kernels() -> Iterator[None]:
    """Within this, models that are compiled share kernels: named alike, what one compiles is found by the others.

    >>> with shared_kernels():
    ...     torch.compile(nn.Identity())  # doctest: +ELLIPSIS
    OptimizedModule(...
    """
    from torch._inductor import config

    with config.patch({"triton.unique_kernel_names": False}):
        yield
