"""versus: lean models against the backbone they come from, each in its fastest form, in one run.

The yardstick is fair: the backbone eager, compiled, compiled with channels last, and each compiled form captured in a
CUDA graph as well; a speed-up is over the fastest of them. On a CPU there are no graphs.
"""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table
from torch import nn

from leanformer.core import input_of
from leanformer.measure.counting import count
from leanformer.measure.timing import capture, interleave, prepare

Optimize = Callable[..., Any]
FP8 = "fp8"
"""The form with fp8 products."""


@dataclass(frozen=True)
class Contest:
    """One lean model beside its backbone: images a second of each form, and what they are over the best backbone."""

    label: str
    backbone: str
    batch: int
    size: int
    dtype: str
    forms: dict[str, float]
    """Form → images a second: 'backbone eager', 'backbone compiled', …, and ours: 'eager', 'compiled', …, 'optimised'.

    Graphs are timed by their replay alone, the backbone's and ours.
    """
    spread: dict[str, float]
    mac_ratio: float
    steps: tuple[str, ...] = ()
    errors: dict[str, float] = field(default_factory=dict)
    """Form → error of its outputs against float32, as a share of their norm: 'optimised', and 'fp8' if asked for."""

    @property
    def yardstick(self) -> float:
        """The fastest form of the backbone."""
        return max(rate for form, rate in self.forms.items() if form.startswith("backbone"))

    @property
    def speedup(self) -> float:
        """Our fastest form over the backbone's fastest; fp8 products change answers and do not count."""
        mine = (rate for form, rate in self.forms.items() if not form.startswith("backbone") and form != FP8)
        return max(mine) / self.yardstick

    @property
    def fp8_speedup(self) -> float | None:
        """The form with fp8 products over the backbone's fastest, where it was asked for."""
        return self.forms[FP8] / self.yardstick if FP8 in self.forms else None


def versus(
    backbone: nn.Module,
    leans: Mapping[str, nn.Module],
    optimize: Optimize,
    *,
    device: torch.device,
    batch: int,
    dtype: str,
    size: tuple[int, int, int],
    repeats: int = 5,
    name: str = "",
    fp8: bool = False,
    ready: Callable[[], None] | None = None,
) -> list[Contest]:
    """Time all forms of a backbone and of the lean models made from it, interleaved. `optimize` is lf.optimize.

    `size` is the backbone's input; a lean model made for another one is timed at its own. `fp8` adds a form of each
    lean model whose linear layers are fp8 products; `ready` is called when all is compiled and only the timing is left.

    >>> versus(teacher, {"EViT": lean}, lf.optimize, device=torch.device("cuda"), batch=256,
    ...        dtype="bfloat16", size=(3, 224, 224))[0].speedup  # doctest: +SKIP
    """
    kind = getattr(torch, dtype)
    sizes = {label: input_of(lean)["input_size"] for label, lean in leans.items()}
    inputs = {each: torch.randn(batch, *each, device=device).to(kind) for each in {size, *sizes.values()}}
    plain = copy.deepcopy(backbone).eval().to(device, kind)
    forms = _forms("backbone", plain, inputs[size])
    steps, errors = {}, {}
    quicken = functools.partial(optimize, device=device, batch=batch, dtype=dtype, search=False)
    for label, lean in leans.items():
        fused, images = copy.deepcopy(lean).eval().to(device, kind), inputs[sizes[label]]
        fast = quicken(lean)
        steps[label], errors[label] = tuple(fast.choice.steps), {"optimised": fast.choice.error}
        forms[f"{label}: eager"] = prepare(fused, images, "eager")
        forms[f"{label}: compiled"] = compiled = prepare(fused, images, "compiled")
        if device.type == "cuda":
            forms[f"{label}: compiled, graph"] = capture(compiled)
        forms[f"{label}: optimised"] = fast.on(images)
        if fp8:
            rounded = quicken(lean, fp8=True)
            errors[label][FP8] = rounded.choice.error
            forms[f"{label}: {FP8}"] = rounded.on(images)
    timings = interleave(forms, device, repeats, ready=ready)
    whole = count(backbone, size).macs
    contests = []
    for label, lean in leans.items():
        mine = {
            form.removeprefix(f"{label}: "): timing
            for form, timing in timings.items()
            if form.startswith(("backbone", f"{label}: "))
        }
        rates = {form: batch / timing.median for form, timing in mine.items()}
        spread = {form: timing.spread for form, timing in mine.items()}
        ratio = whole / count(lean, sizes[label]).macs
        contests.append(
            Contest(label, name, batch, sizes[label][1], dtype, rates, spread, ratio, steps[label], errors[label])
        )
    return contests


def _forms(name: str, model: nn.Module, images: torch.Tensor) -> dict[str, Callable[[], Any]]:
    forms = {f"{name} eager": prepare(model, images, "eager"), f"{name} compiled": prepare(model, images, "compiled")}
    laid_out = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    last = images.contiguous(memory_format=torch.channels_last)
    forms[f"{name} compiled, channels last"] = prepare(laid_out, last, "compiled")
    if images.device.type == "cuda":
        forms |= {f"{form}, graph": capture(call) for form, call in forms.items() if "compiled" in form}
    return forms


def contest_table(contests: Sequence[Contest]) -> Table:
    """The contests as one rich table."""
    shown = Table(title="over the fastest form of the backbone, in the same run", title_justify="left")
    columns = ("model", "batch", "px", "backbone eager", "backbone best", "lean compiled", "optimised", "speed-up")
    rounded = any(contest.fp8_speedup is not None for contest in contests)
    for name in (*columns, "MAC ratio", *(("with fp8", "its error") if rounded else ())):
        shown.add_column(name, justify="left" if name == "model" else "right")
    for contest in contests:
        shown.add_row(
            contest.label,
            str(contest.batch),
            str(contest.size),
            f"{contest.forms['backbone eager']:,.0f}",
            f"{contest.yardstick:,.0f}",
            f"{contest.forms['compiled']:,.0f}",
            f"{contest.forms['optimised']:,.0f}",
            f"{contest.speedup:.2f}x",
            f"{contest.mac_ratio:.2f}",
            *((f"{contest.fp8_speedup:.2f}x", f"{contest.errors[FP8]:.1e}") if rounded else ()),
        )
    return shown
