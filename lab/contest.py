"""Lean models against the backbone they come from, all timed in one run, as their user calls them.

    over timm = timm's fastest form / lean optimised              the user's gain
    over own  = backbone optimised / lean optimised               the method's own share of it
    share     = over own / (backbone's MACs / lean MACs)          how much of the saved arithmetic is saved time

timm's forms are eager, compiled, compiled with channels last, and each compiled form in a CUDA graph. A graph is called
with a batch, which is copied into its buffer. The optimised forms are what `lf.optimize` returns, called likewise.
Other runtimes have rows of their own: there, both optimised forms are the exported models.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from leanformer import optimize
from leanformer.core import input_of
from leanformer.measure import Timing, count, graphed, interleave, prepare

from .contest_result import FP8, OPTIMISED, TORCH, TORCHAO, Contest, is_timms
from .peers import fp8_by_torchao, installed

Call = Callable[[], Any]
Make = Callable[[], nn.Module]
Open = Callable[[nn.Module], Callable[[Tensor], Any]]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which all models of a contest are timed."""

    device: torch.device
    batch: int
    dtype: str
    repeats: int = 5
    fp8: bool = False
    """Whether each lean model is timed with fp8 products as well, and with torchao's where it is installed; they change
    answers and stand apart."""
    compile_leans: bool = False
    """Whether each lean model is timed under torch.compile alone as well."""
    runtimes: Mapping[str, Open] = field(default_factory=dict)
    """Name → a function that opens a model in another runtime."""

    def images(self, model: nn.Module) -> Tensor:
        """A batch of the model's size."""
        shape = (self.batch, *input_of(model)["input_size"])
        return torch.randn(shape, device=self.device).to(getattr(torch, self.dtype))

    def ready_model(self, model: nn.Module) -> nn.Module:
        """A copy of the model on the device, in the dtype."""
        return copy.deepcopy(model).eval().to(self.device, getattr(torch, self.dtype))

    def optimised(self, model: nn.Module, fp8: bool = False) -> Any:
        """What `lf.optimize` makes of the model, every step that applies taken."""
        size = input_of(model)["input_size"]
        return optimize(model, device=self.device, batch=self.batch, dtype=self.dtype, size=size, search=False, fp8=fp8)


def run_contests(
    name: str,
    timms: nn.Module,
    backbone: nn.Module,
    leans: Mapping[str, nn.Module],
    conditions: Conditions,
    peers: Mapping[str, Make] | None = None,
    ready: Callable[[], None] | None = None,
) -> list[Contest]:
    """Time all forms of a backbone and of the models made from it, in turn.

    Args:
        name: what the rows call the backbone.
        timms: the backbone as timm has it.
        backbone: the backbone as this library has it, fused.
        leans: label → lean model, fused.
        conditions: device, batch, dtype, and which forms.
        peers: label → a function that makes another library's model of the backbone; timed eager and compiled.
        ready: called when all is compiled and only the timing is left.

    >>> run_contests("vit", timms, backbone, {"EViT": lean}, conditions)[0].over_own  # doctest: +SKIP
    """
    entrants = _Entrants(name, timms, backbone, conditions)
    entrants.add_backbone()
    for label, lean in leans.items():
        entrants.add(label, functools.partial(_itself, lean), entrants.lean_calls)
    for label, make in (peers or {}).items():
        entrants.add(label, make, entrants.peer_calls)
    return entrants.contests(interleave(entrants.calls, conditions.device, conditions.repeats, ready=ready))


class _Entrants:
    """All calls of one contest, by the model that they belong to and their form."""

    def __init__(self, name: str, timms: nn.Module, backbone: nn.Module, conditions: Conditions):
        self.name, self.timms, self.backbone, self.conditions = name, timms, backbone, conditions
        self.calls: dict[tuple[str, str], Call] = {}
        self.models: dict[str, nn.Module] = {}
        self.steps: dict[str, tuple[str, ...]] = {}
        self.errors: dict[str, dict[str, float]] = {}
        self.missing: dict[str, dict[str, str]] = {}
        self.failed: dict[str, str] = {}

    def add_backbone(self) -> None:
        """timm's forms, ours optimised, and ours in other runtimes."""
        images = self.conditions.images(self.timms)
        for form, call in compiled_forms(self.conditions.ready_model(self.timms), images, channels_last=True).items():
            self.calls["", f"backbone {form}"] = call
        for form, call in self._optimised("", self.backbone).items():
            self.calls["", f"backbone {form}"] = call

    def add(self, label: str, make: Make, calls_of: Callable[[str, nn.Module], dict[str, Call]]) -> None:
        """A model's calls; one that cannot be made or run must not cost the rows of the others."""
        self.models[label] = self.backbone
        try:
            self.models[label] = model = make()
            calls = calls_of(label, model)
            for call in calls.values():
                call()
        except Exception as error:
            self.failed[label] = _told(error)
            return
        self.calls |= {(label, form): call for form, call in calls.items()}

    def lean_calls(self, label: str, lean: nn.Module) -> dict[str, Call]:
        images, ready = self.conditions.images(lean), self.conditions.ready_model(lean)
        calls = {"eager": prepare(ready, images, "eager")}
        if self.conditions.compile_leans:
            calls |= compiled_forms(ready, images)
        calls |= self._optimised(label, lean)
        if self.conditions.fp8:
            calls |= self._beside(label, FP8, lambda: self._rounded(label, lean, images))
            if installed("torchao"):
                calls |= self._beside(label, TORCHAO, lambda: _rounded_by_torchao(ready, images))
        return calls

    def _beside(self, label: str, form: str, make: Callable[[], dict[str, Call]]) -> dict[str, Call]:
        """Further calls of a model; where they cannot be made or run the row goes without, and says why."""
        try:
            calls = make()
            for call in calls.values():
                call()
        except Exception as error:
            self.missing.setdefault(label, {})[form] = _told(error)
            return {}
        return calls

    def _rounded(self, label: str, lean: nn.Module, images: Tensor) -> dict[str, Call]:
        """A model made fast with fp8 products."""
        rounded = self.conditions.optimised(lean, fp8=True)
        self.errors[label][FP8] = rounded.choice.error
        return {FP8: functools.partial(rounded, images)}

    def peer_calls(self, label: str, peer: nn.Module) -> dict[str, Call]:
        return compiled_forms(self.conditions.ready_model(peer), self.conditions.images(peer))

    def _optimised(self, label: str, model: nn.Module) -> dict[str, Call]:
        """A model made fast by this library, and the model in each other runtime."""
        images = self.conditions.images(model)
        fast = self.conditions.optimised(model)
        self.steps[label], self.errors[label] = tuple(fast.choice.steps), {OPTIMISED: fast.choice.error}
        calls: dict[str, Call] = {OPTIMISED: functools.partial(fast, images)}
        for runtime, open_ in self.conditions.runtimes.items():
            calls[runtime] = functools.partial(open_(model), images)
        return calls

    def contests(self, timings: Mapping[tuple[str, str], Timing]) -> list[Contest]:
        """One row a model and runtime."""
        whole = count(self.backbone).macs
        rows = []
        for label, model in self.models.items():
            base = Contest(
                label, self.name, self.conditions.batch, input_of(model)["input_size"][1], self.conditions.dtype,
                failed=self.failed.get(label, ""),
            )  # fmt: skip
            if base.failed:
                rows.append(base)
                continue
            mine = {form: timing for (owner, form), timing in timings.items() if owner in ("", label)}
            for runtime in (TORCH, *self.conditions.runtimes):
                rows.append(self._contest(base, runtime, mine, whole / count(model).macs))
        return rows

    def _contest(self, base: Contest, runtime: str, timings: Mapping[str, Timing], mac_ratio: float) -> Contest:
        form = OPTIMISED if runtime == TORCH else runtime
        peer = form not in timings  # compiled, in a graph where that is faster
        form = min((f for f in timings if f.startswith("compiled")), key=lambda f: timings[f].median) if peer else form
        theirs = min((f for f in timings if is_timms(f)), key=lambda f: timings[f].median)
        over_timm, over_timm_spread = timings[form].speedup(timings[theirs])
        over_own = None if peer else timings[form].speedup(timings[f"backbone {form}"])
        kept = {f: t for f, t in timings.items() if _belongs(f, runtime, self.conditions.runtimes)}
        return Contest(
            base.label, base.backbone, base.batch, base.size, base.dtype, runtime,
            forms={f: base.batch / t.median for f, t in kept.items()}, spread={f: t.spread for f, t in kept.items()},
            mac_ratio=mac_ratio, over_timm=over_timm, over_timm_spread=over_timm_spread,
            over_own=over_own[0] if over_own else None, over_own_spread=over_own[1] if over_own else None,
            fp8_over_timm=timings[FP8].speedup(timings[theirs])[0] if FP8 in timings else None,
            steps=self.steps.get(base.label, ()), backbone_steps=self.steps[""],
            errors=self.errors.get(base.label, {}), missing=self.missing.get(base.label, {}),
        )  # fmt: skip


def compiled_forms(model: nn.Module, images: Tensor, channels_last: bool = False) -> dict[str, Call]:
    """A model eager and compiled, on a GPU in a graph as well; with `channels_last` compiled in that layout too.

    Args:
        model: on the device and in the dtype of the images.
        images: a batch.
        channels_last: whether that memory layout is tried.

    >>> list(compiled_forms(nn.Identity(), torch.zeros(1)))
    ['eager', 'compiled']
    """
    layouts = {"compiled": (model, images)}
    if channels_last:
        laid_out = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        last = images.contiguous(memory_format=torch.channels_last)
        layouts["compiled, channels last"] = (laid_out, last)
    forms: dict[str, Call] = {"eager": prepare(model, images, "eager")}
    for name, (each, batch) in layouts.items():
        run = torch.compile(each, dynamic=False)
        forms[name] = functools.partial(_answer, run, batch)
        if images.device.type == "cuda":
            forms[f"{name}, graph"] = functools.partial(graphed(run, batch), batch)
    return forms


def _rounded_by_torchao(model: nn.Module, images: Tensor) -> dict[str, Call]:
    theirs = compiled_forms(fp8_by_torchao(model), images)
    return {f"{TORCHAO}, {form}": call for form, call in theirs.items() if form != "eager"}


def _itself(model: nn.Module) -> nn.Module:
    return model


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


@torch.inference_mode()
def _answer(run: Callable[[Tensor], Any], images: Tensor) -> Any:
    return run(images)


def _belongs(form: str, runtime: str, runtimes: Mapping[str, Open]) -> bool:
    """Whether a row of this runtime shows the form: timm's forms always, the others in their own runtime."""
    where = form.removeprefix("backbone ")
    return is_timms(form) or (where == runtime if runtime != TORCH else where not in runtimes)
