"""How fast dense models are, whole, a picture at a time: compiled beside other work, timed in turn.

    build all → compile, what tells most first → wait for the file that says go → time all that is ready, in turn

Nothing that fails or comes too late keeps the rest from being timed.
"""

import contextlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanformer as lf
from leanformer.measure import Timing, commit, console, count, interleave, shared_kernels
from leanformer.tasks.pyramid import features_of, with_features

from ..compile_together import compile_together, wait_for
from .rows import has_row

FORMS = ("eager", "backbone", "compiled backbone", "optimised")
QUICK = ("eager", "backbone")
"""Forms that need no compiler; of the others the last one comes first."""
THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
"""Tells a process how many kernels its compiler may make at the same time; all cores unless it is set."""


@dataclass(frozen=True)
class Entry:
    """A model to time."""

    kind: str
    backbone: str
    build: Callable[[], nn.Module]
    size: tuple[int, int, int]
    paper: str = ""
    """Milliseconds a picture as the paper prints them."""
    unchanged: str = ""
    """The label of the model with the unchanged backbone, where the ratio over it is wanted."""
    picture: Tensor | None = None
    """What is looked at instead of noise: (3, H, W), between 0 and 1."""

    @property
    def label(self) -> str:
        return f"{self.kind}, {self.backbone}"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which models are timed."""

    device: torch.device
    dtype: str = "float32"
    forms: tuple[str, ...] = FORMS
    repeats: int = 7
    search: bool = True
    """Whether `lf.optimize` times its steps, or takes those that are known to pay."""
    go: Path | None = None
    """Timing waits for this file, and nothing more is compiled once it is there."""

    def over(self) -> bool:
        """Whether what is not compiled by now is left out."""
        return self.go is not None and self.go.exists()


@dataclass(frozen=True)
class Timed:
    """What was found for a model: milliseconds a picture by form, and half their range as a share."""

    label: str
    kind: str
    backbone: str
    size: tuple[int, ...]
    dtype: str
    parameters: float
    macs: float
    milliseconds: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)
    paper: str = ""
    over_unchanged: float | None = None
    """How many times faster, optimised, than the model with the unchanged backbone, optimised; turn by turn."""
    over_unchanged_spread: float | None = None


def compile_ahead(entries: Sequence[Entry], how: Conditions, workers: int) -> None:
    """Fill the compiler's cache with what timing these models will ask of it.

    Args:
        entries: the models; the first ones first.
        how: device, dtype, forms, …; nothing more is begun once `how.go` is there.
        workers: processes, each of which takes the next form of a model when it is done with one.
    """
    work = [(entry, form) for form in _in_order(how.forms) if form not in QUICK for entry in entries]
    workers = min(workers, len(work))
    taken = multiprocessing.get_context("spawn").Value("i", 0)
    with shared_cores(workers):
        for _ in compile_together([partial(_compiled, work, taken, how)] * workers, workers):
            pass


@contextlib.contextmanager
def shared_cores(workers: int) -> Iterator[None]:
    """Within this, processes that are started share the cores: each compiler takes its part of them, instead of all.

    Args:
        workers: how many compile at the same time.

    >>> with shared_cores(10**6):
    ...     os.environ[THREADS]
    '1'
    """
    before = os.environ.get(THREADS)
    if workers > 1 and before is None:
        os.environ[THREADS] = str(max(1, (os.cpu_count() or 1) // workers))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(THREADS, None)


def _compiled(
    work: Sequence[tuple[Entry, str]], taken: Any, how: Conditions, ready: Callable[[], None] | None = None
) -> None:
    """Compile what no other process has taken, until nothing is left."""
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(work):
            return
        (entry, form), began = work[number], time.perf_counter()
        if _prepared(*_made(entry, how), form, how) is not None:
            seconds = time.perf_counter() - began
            console().print(f"{number + 1} of {len(work)}: {entry.label}, {form} in {seconds:.0f} s", highlight=False)
        torch.compiler.reset()  # it gives up on a piece of code after eight models


def as_row(row: Timed, how: Conditions) -> dict[str, Any]:
    """What a result file says of a model, with what `is_timed` asks.

    Args:
        row: what was found.
        how: under which conditions.
    """
    return asdict(row) | {"device": how.device.type, "commit": commit()}


def is_timed(rows: Iterable[dict[str, Any]], label: str, size: Sequence[int], how: Conditions, **wanted: Any) -> bool:
    """Whether rows tell all forms of a model, timed by the code that runs now and under the same conditions.

    Args:
        rows: what `as_row` gave.
        label: of the model.
        size: of the picture.
        how: under which conditions.
        wanted: what else the row must say.
    """
    about = {"label": label, "dtype": how.dtype, "device": how.device.type, "commit": commit(), **wanted}
    whole = (row for row in rows if set(how.forms) <= set(row.get("milliseconds", ())) and [*row["size"]] == [*size])
    return has_row(whole, about)


def _in_order(forms: Sequence[str]) -> list[str]:
    """What takes no time first, then what tells most."""
    return [*(form for form in forms if form in QUICK), *(form for form in forms[::-1] if form not in QUICK)]


def time_group(group: list[Entry], how: Conditions, ready: Callable[[], None] | None = None) -> list[Timed]:
    """Time all forms of some models in turn; a form that fails is left out, and so is what `how.go` came too early for.

    Args:
        group: the models.
        how: device, dtype, forms, ….
        ready: called when all is compiled and only the timing is left.
    """
    torch.compiler.reset()  # it gives up on a piece of code after eight models, and groups before this one had some
    made, found = [_made(entry, how) for entry in group], []
    for entry, (model, picture) in zip(group, made):
        counted = count(model, tuple(picture.shape))
        found.append(
            Timed(
                entry.label, entry.kind, entry.backbone, tuple(picture.shape), how.dtype, counted.parameters / 1e6,
                counted.macs / 1e9, paper=entry.paper,
            )
        )  # fmt: skip
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    for form in _in_order(how.forms):
        for entry, (model, picture) in zip(group, made):
            call = _prepared(model, picture, form, how)
            calls |= {} if call is None else {(entry.label, form): call}

    def then() -> None:
        if ready is not None:
            ready()
        wait_for(how.go)

    timings = interleave(calls, how.device, how.repeats, ready=then if ready or how.go else None)
    return [_filled(row, entry, timings, how.forms) for row, entry in zip(found, group)]


def _made(entry: Entry, how: Conditions) -> tuple[nn.Module, Tensor]:
    """A model and the picture that it looks at, on the device."""
    torch.manual_seed(0)
    with torch.device(how.device):
        model = entry.build().eval()
    drawn = torch.rand(entry.size, generator=torch.Generator().manual_seed(0))
    return model, (drawn if entry.picture is None else entry.picture).to(how.device)


def _prepared(model: nn.Module, picture: Tensor, form: str, how: Conditions) -> Callable[[], Any] | None:
    """The call of a form, compiled; None where that fails, or is too late."""
    if how.over() and form not in QUICK:
        return None
    try:
        with shared_kernels():
            call = _call(model, picture, form, how)
            call()
    except Exception:  # the other forms do not depend on it
        traceback.print_exc()
        return None
    return call


def _filled(row: Timed, entry: Entry, timings: dict[tuple[str, str], Timing], forms: tuple[str, ...]) -> Timed:
    """A row with its times, and the ratio over the unchanged backbone where that was timed too."""
    for form in forms:
        if (row.label, form) in timings:
            row.milliseconds[form] = 1e3 * timings[row.label, form].median
            row.spread[form] = timings[row.label, form].spread
    mine, theirs = (timings.get((label, "optimised")) for label in (row.label, entry.unchanged))
    if mine is None or theirs is None:
        return row
    ratio, spread = mine.speedup(theirs)
    return replace(row, over_unchanged=ratio, over_unchanged_spread=spread)


def _call(model: Any, picture: Tensor, form: str, how: Conditions) -> Callable[[], Any]:
    """A call that runs a form of a model on one picture; a detector resizes it to its own size."""
    detector = hasattr(model, "transform")
    features = features_of(model)
    seen = model.transform([picture])[0].tensors if detector else picture[None]
    if form == "compiled backbone":
        compiled: Any = torch.compile(features, dynamic=False)
        model = with_features(model, compiled)
    elif form == "optimised":
        size = (seen.shape[1], seen.shape[2], seen.shape[3])
        model = lf.optimize(model, device=how.device, batch=1, dtype=how.dtype, size=size, search=how.search)
    if form == "backbone":
        run: Callable[[], Any] = partial(features, seen)
    else:
        run = partial(model, [picture] if detector else picture[None])

    def call() -> Any:
        low = how.dtype != "float32"
        context = torch.autocast(how.device.type, getattr(torch, how.dtype)) if low else contextlib.nullcontext()
        with torch.inference_mode(), context:
            return run()

    return call
