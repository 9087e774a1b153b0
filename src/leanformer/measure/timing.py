"""Timing that can be trusted: warmed up, repeated, and interleaved, so that a noisy machine hits all alike.

Every call is timed by itself (device events on a GPU, the wall clock on a CPU); throughput comes from whole repeats.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Call = Callable[[], Any]
Key = TypeVar("Key")
SAMPLE_SECONDS = {"cuda": 0.06, "cpu": 0.15}
"""How long one repeat of one candidate runs at least; a GPU's events are finer than a CPU's clock is steady."""
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


def interleave(
    candidates: Mapping[Key, Call],
    device: torch.device,
    repeats: int = 7,
    seconds: float | None = None,
    ready: Callable[[], None] | None = None,
) -> dict[Key, Timing]:
    """Time all candidates in turn, `repeats` times over, after a warm-up of each; a repeat runs `seconds` at least.

    `ready` is called once everything is compiled and only the timing is left.

    >>> timings = interleave({"a": lambda: sum(range(100))}, torch.device("cpu"), repeats=3)
    >>> len(timings["a"].repeats)
    3
    """
    seconds = seconds or SAMPLE_SECONDS.get(device.type, SAMPLE_SECONDS["cpu"])
    if ready is not None:
        for call in candidates.values():
            call()  # what is compiled at the first call is compiled now
        ready()
    counts = {name: _warm_up(call, device, seconds) for name, call in candidates.items()}
    timings = {name: Timing() for name in candidates}
    for turn in range(repeats):
        names = list(candidates)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            calls, total = _time(candidates[name], counts[name], device)
            timings[name].repeats.append(total / counts[name])
            timings[name].calls += calls
    return timings


def _warm_up(call: Call, device: torch.device, seconds: float) -> int:
    """Run until times are settled, and return how many calls make one repeat."""
    call()
    _, once = _time(call, 1, device)
    if once > LONG_SECONDS:
        return max(1, round(seconds / once))
    call()
    _, total = _time(call, 3, device)
    return max(3, min(1000, round(seconds / max(total / 3, 1e-7))))


def _time(call: Call, count: int, device: torch.device) -> tuple[list[float], float]:
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(count):
            call()
            marks.append(time.perf_counter())
        return [b - a for a, b in pairwise(marks)], marks[-1] - marks[0]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize(device)
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize(device)
    calls = [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]
    return calls, events[0].elapsed_time(events[-1]) / 1e3


def prepare(model: nn.Module, images: Tensor, mode: str) -> Call:
    """A call that runs `model` on `images`, eager, compiled, or compiled and captured in a CUDA graph.

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

    return capture(call) if mode == "graph" else call


def capture(call: Call) -> Call:
    """Record a call into a CUDA graph; the result replays it and returns the output it wrote to."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()

    def replay() -> Any:
        graph.replay()
        return output

    return replay


def relocate(model: nn.Module, place: int) -> Tensor:
    """Move the weights to other places in memory; keep what is returned, or the next call finds these places free.

    Small models run some per cent faster or slower by where they happen to lie, which no repeat in one place shows.

    >>> layer = nn.Linear(2, 2)
    >>> before = layer.weight.data_ptr()
    >>> pad = relocate(layer, 1)
    >>> layer.weight.data_ptr() != before
    True
    """
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else None
    pad = torch.empty(place * (3 * 2**20 + 4096), dtype=torch.uint8, device=device)
    copies = [tensor.data.clone() for tensor in tensors]  # all, before the first old place is free
    for tensor, copied in zip(tensors, copies, strict=True):
        tensor.data = copied
    return pad


def matrix_peak(device: torch.device, dtype: torch.dtype) -> float:
    """The device's matrix rate in FLOP/s, measured on products of random numbers: of the sizes the best one.

    >>> matrix_peak(torch.device("cpu"), torch.float32) > 1e9
    True
    """
    sizes = (8192,) if device.type == "cuda" else (512, 1024)  # a CPU is fastest where its cache holds all three
    return max(_product_rate(n, device, dtype) for n in sizes)


def _product_rate(n: int, device: torch.device, dtype: torch.dtype) -> float:
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    timing = interleave({"product": lambda: a @ b}, device, repeats=5)["product"]
    return 2 * n**3 / min(timing.repeats)


def memory_rate(device: torch.device) -> float:
    """The device's memory rate in bytes a second, measured by a copy too large for its caches.

    >>> memory_rate(torch.device("cpu")) > 1e8
    True
    """
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timing = interleave({"copy": lambda: target.copy_(source)}, device, repeats=5, seconds=0.05)["copy"]
    return 2 * size / min(timing.repeats)


def share_kernels() -> None:
    """Let models compiled from now on share kernels: named alike, what one compiles is found by the others.

    >>> share_kernels()
    """
    from torch._inductor import config

    config.triton.unique_kernel_names = False
