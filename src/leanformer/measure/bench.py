"""compare: models side by side, eager and compiled, at batch 1 and saturated, in one run.

The first model is the yardstick: each row's speed-up is over the same mode, batch and dtype of the first model.
"""

import copy
import functools
import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from rich.table import Table
from torch import nn

from ..core import OptimisesInside, card_of, input_of, plain_of
from .comparison_table import comparison_table
from .counting import count
from .energy import joules
from .graphs import capture, with_copies
from .inside import prepare_inside
from .load_by_others import LoadByOthers, load_message
from .rates import matrix_peak
from .results import record, write_result
from .terminal import Printed, console
from .timing import Call, Timing, interleave, prepare, relocate

OPTIMISED = "optimised"
"""The mode of models made fast by `lf.optimize`."""
MEMORY_LAYOUTS = 3
"""How often the weights are moved in memory, the repeats shared among the layouts: where they lie changes the speed."""

Optimize = Callable[..., Any]
Open = Callable[[nn.Module], Callable[[torch.Tensor], Any]]
"""A model → a function that computes its answers in another runtime, such as that of an exported file."""


@dataclass(frozen=True)
class Measured:
    """One model in one mode at one batch size. Seconds, bytes, joules; None where the device does not tell."""

    model: str
    mode: str
    batch: int
    dtype: str
    throughput: float
    spread: float
    latency_p50: float
    latency_p90: float
    latency_p99: float
    speedup: float
    """Over the first model in the same mode, turn by turn."""
    speedup_spread: float
    parameters: int
    macs: int
    share_of_peak: float
    peak_memory: int | None = None
    joules_per_image: float | None = None


@dataclass(frozen=True)
class Comparison(Printed):
    """All rows of one run, with what it ran on."""

    rows: tuple[Measured, ...]
    device: str
    peak: dict[str, float] = field(default_factory=dict)
    """dtype → measured matrix rate in FLOP/s."""
    load_by_others: float | None = None
    """CPUs that other programs used meanwhile; None where the system does not tell."""

    def print(self) -> None:
        """Print the table to the terminal, and what else the machine did."""
        super().print()
        if (line := load_message(self.load_by_others)) is not None and self.device == "cpu":
            console().print(line)

    def __rich__(self) -> Table:
        return comparison_table(self)

    def record(self) -> dict[str, Any]:
        """The run in the schema of `results`."""
        more = {"matrix_peak": self.peak, "load_by_others": self.load_by_others}
        return record("bench", [asdict(row) for row in self.rows], self.device, **more)

    def save(self, path: str | Path) -> Path:
        """Write the run as JSON."""
        return write_result(self.record(), path)


def compare(
    models: Sequence[nn.Module] | Mapping[str, nn.Module],
    *,
    device: str | torch.device | None = None,
    batches: Sequence[int] | None = None,
    dtypes: Sequence[str] | None = None,
    modes: Sequence[str] = ("eager", "compiled"),
    repeats: int = 11,
    size: tuple[int, int, int] | None = None,
    runtimes: Mapping[str, Open] | None = None,
    optimize: Optimize | None = None,
) -> Comparison:
    """Measure models side by side; the first is what the speed-ups of the others are over.

    Args:
        models: the models, by name or in a row; an optimised one counts as the model that it was made from.
        device: by default the GPU if there is one.
        batches: batch sizes; by default 1 and one that fills the device.
        dtypes: float32, bfloat16 or float16; by default bfloat16 on a GPU and float32 on a CPU.
        modes: eager, compiled, optimised, and on a GPU graph: compiled and captured in a CUDA graph.
        repeats: how often each row is timed, in turn with the others.
        size: of the images, (C, H, W); by default each model's own.
        runtimes: further modes: name → a function that opens a model in another runtime.
        optimize: lf.optimize, for the mode `optimised`.

    >>> import leanformer as lf
    >>> tiny = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
    >>> lf.measure.compare([tiny], batches=[1], modes=["eager"], repeats=2).rows[0].mode
    'eager'
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    batches = batches or ((1, 256) if device.type == "cuda" else (1, 16))
    dtypes = dtypes or (("bfloat16",) if device.type == "cuda" else ("float32",))
    named = dict(models) if isinstance(models, Mapping) else _named(models)
    named = {name: plain_of(model) for name, model in named.items()}
    known, machine = dict(runtimes or {}), LoadByOthers()
    opened = functools.cache(lambda mode, model: known[mode](model))  # exported once, whatever the batch sizes
    modes = (*modes, *known)
    rows, peaks = [], {}
    with Progress(transient=True, disable=not console().is_terminal) as progress:
        task = progress.add_task("measuring", total=len(dtypes) * len(batches) * len(named) * len(modes))
        for dtype in dtypes:
            peaks[dtype] = matrix_peak(device, getattr(torch, dtype))
            for batch in batches:
                cell = _Cell(device, dtype, batch, modes, repeats, size, peaks[dtype], set(known), opened, optimize)
                rows += cell.run(named, lambda: progress.advance(task))
    return Comparison(tuple(rows), str(device), peaks, machine.share())


@dataclass(frozen=True)
class _Cell:
    """One dtype and batch size: all models in all modes, interleaved."""

    device: torch.device
    dtype: str
    batch: int
    modes: tuple[str, ...]
    repeats: int
    size: tuple[int, int, int] | None
    peak: float
    runtimes: Collection[str]
    opened: Callable[[str, nn.Module], Callable[[torch.Tensor], Any]]
    optimize: Optimize | None = None

    def run(self, models: dict[str, nn.Module], tick: Any) -> list[Measured]:
        torch.compiler.reset()
        ready: dict[tuple[str, str], _Ready] = {}
        memory = {}
        for name, model in models.items():
            dtype = torch.float32 if isinstance(model, OptimisesInside) else getattr(torch, self.dtype)
            twin = copy.deepcopy(model).eval().to(self.device, dtype)
            shape = (self.batch, *(self.size or input_of(model)["input_size"]))
            images = torch.randn(shape, device=self.device).to(dtype)
            for mode in self.modes:
                ready[name, mode] = self._ready(ready.get((name, "compiled")), model, twin, images, mode)
                memory[name, mode] = self._memory(ready[name, mode].call, twin, images)
                tick()
        timings, calls = self._timings(ready)
        energy = {key: joules(call, timings[key].median, self.device) for key, call in calls.items()}
        counts = {name: count(model, self.size) for name, model in models.items()}
        first = next(iter(models))
        rows = [
            self._row(*key, timing, timings[first, key[1]], counts[key[0]], memory[key], energy[key])
            for key, timing in timings.items()
        ]
        del calls, ready
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return rows

    def _row(
        self, name: str, mode: str, timing: Timing, yardstick: Timing, size: Any, memory: int | None,
        spent: float | None,
    ) -> Measured:  # fmt: skip
        throughput = self.batch / timing.median
        speedup, speedup_spread = timing.speedup(yardstick)
        return Measured(
            model=name,
            mode=mode,
            batch=self.batch,
            dtype=self.dtype,
            throughput=throughput,
            spread=timing.spread,
            latency_p50=timing.percentile(0.50),
            latency_p90=timing.percentile(0.90),
            latency_p99=timing.percentile(0.99),
            speedup=speedup,
            speedup_spread=speedup_spread,
            parameters=size.parameters,
            macs=size.macs,
            share_of_peak=2 * size.macs * throughput / self.peak,
            peak_memory=memory,
            joules_per_image=None if spent is None else spent / self.batch,
        )

    def _ready(
        self, compiled: "_Ready | None", model: nn.Module, twin: nn.Module, images: torch.Tensor, mode: str
    ) -> "_Ready":
        if isinstance(twin, OptimisesInside) and mode not in self.runtimes:
            whole = prepare_inside(twin, images, mode, self.dtype, self.optimize)
            return _Ready(nn.Identity(), whole, lambda: whole)
        if mode == OPTIMISED and self.optimize is not None:
            options = {"device": self.device, "batch": self.batch, "dtype": self.dtype, "size": tuple(images.shape[1:])}
            fast = self.optimize(model, **options, search=False)
            ungraphed = fast.on(images, graph=False)
            return _Ready(fast.module, ungraphed, lambda: functools.partial(fast.recaptured(), images))
        if mode == "graph" and self.device.type == "cuda":  # not compiled twice
            call = compiled.call if compiled is not None else self._prepare(model, twin, images, "compiled")
            replay = functools.partial(capture, call, images.device)
            return _Ready(twin, call, lambda: functools.partial(with_copies(replay(), images), images.clone()))
        call = self._prepare(model, twin, images, mode)
        return _Ready(twin, call, lambda: call)

    def _prepare(self, model: nn.Module, twin: nn.Module, images: torch.Tensor, mode: str) -> Call:
        """A call on `images`: of `twin` (the model in the wanted dtype) in PyTorch, or of the model in its runtime."""
        if mode not in self.runtimes:
            return prepare(twin, images, mode)
        if self.dtype != "float32" or images.device.type != "cpu":
            raise ValueError(f"runtime '{mode}' is measured in float32 on the CPU, not in {self.dtype}")
        return functools.partial(self.opened(mode, model), images)

    def _timings(
        self, ready: "dict[tuple[str, str], _Ready]"
    ) -> tuple[dict[tuple[str, str], Timing], dict[tuple[str, str], Call]]:
        """All in turn, in each layout of memory; and the calls of the last layout."""
        timings = {key: Timing() for key in ready}
        layouts, calls, pads = min(MEMORY_LAYOUTS, self.repeats), {}, []
        models = {id(each.model): each.model for each in ready.values()}
        for layout in range(layouts):
            pads += [relocate(model, layout) for model in models.values()]
            calls = {key: each.moved() for key, each in ready.items()}
            repeats = self.repeats // layouts + (layout < self.repeats % layouts)
            for key, timing in interleave(calls, self.device, repeats).items():
                timings[key].extend(timing)
        return timings, calls

    def _memory(self, call: Call, model: nn.Module, images: torch.Tensor) -> int | None:
        """What the model, its input and everything in between need at most."""
        call()
        if self.device.type != "cuda":
            return None
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        call()
        torch.cuda.synchronize(self.device)
        own = sum(tensor.nbytes for tensor in (images, *model.parameters(), *model.buffers()))
        return own + torch.cuda.max_memory_allocated(self.device) - before


@dataclass(frozen=True)
class _Ready:
    """A model in one mode, ready to be timed."""

    model: nn.Module
    call: Call
    """Outside any graph, whose memory does not show."""
    moved: Callable[[], Call]
    """The call that is timed, once the weights lie in a new place."""


def _named(models: Sequence[nn.Module]) -> dict[str, nn.Module]:
    named: dict[str, nn.Module] = {}
    for model in models:
        card = card_of(model)
        name = " + ".join([card.backbone, *(m.name for m in card.methods)]) + (" fused" if card.fused else "")
        while name in named:
            name += "'"
        named[name] = model
    return named
