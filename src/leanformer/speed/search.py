"""The search: try each rewrite, keep what is faster and gives the same answers, then compile and capture.

The decision is remembered by model, device, batch and dtype, so that a second call costs one compilation.
"""

import copy
import functools
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from ..core import card_of, input_of, set_card, versions, write_atomically
from ..core.rewrite import Rewrite
from ..measure.console import as_text
from ..measure.timing import capture, interleave
from . import fp8 as eight_bits
from .rewrite import WHEN_MEASURED, rewrites

WORTH = 0.995
"""A step is kept when the time falls below this share."""


@dataclass
class Attempt:
    """One step of the search: seconds a batch with it, the error of the outputs, and whether it was kept."""

    step: str
    seconds: float
    error: float
    kept: bool


@dataclass
class Choice:
    """What was chosen, and what each step gained."""

    batch: int
    steps: list[str] = field(default_factory=list)
    graph: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    remembered: bool = False
    error: float | None = None
    """Of the final model's outputs, as a share of their norm, against the plain model in float32."""

    def __rich__(self) -> Table:
        title = f"optimize, batch {self.batch}{', remembered from an earlier run' if self.remembered else ''}"
        title += "" if self.error is None else f": {', '.join(self.steps) or 'torch.compile'}, error {self.error:.1e}"
        table = Table("step", "img/s", "time", "error", "", title=title, title_justify="left")
        first = self.attempts[0].seconds if self.attempts else 0.0
        for attempt in self.attempts:
            share = f"{attempt.seconds / first:.1%}"
            kept = "kept" if attempt.kept else "no gain"
            table.add_row(attempt.step, f"{self.batch / attempt.seconds:,.0f}", share, f"{attempt.error:.1e}", kept)
        return table

    def __str__(self) -> str:
        return as_text(self)


class Optimized(nn.Module):
    """A model with its fastest way to run. Other batch sizes than the one tuned for run compiled, without a graph."""

    def __init__(self, module: nn.Module, choice: Choice, example: Tensor):
        super().__init__()
        self.module = module
        self.choice = choice
        self._run: Callable[[Tensor], Tensor] = torch.compile(module, dynamic=False)
        self._shape = tuple(example.shape)
        self._inputs = example.clone() if choice.graph else None
        self._replay = None
        self.recaptured()

    @torch.inference_mode()
    def forward(self, images: Tensor) -> Tensor:
        if self._replay is None or tuple(images.shape) != self._shape:
            return self._compiled(images)
        assert self._inputs is not None
        self._inputs.copy_(images)
        return self._replay().clone()

    def recaptured(self) -> "Optimized":
        """Itself, its graph recorded again: needed once the weights lie elsewhere in memory."""
        if self._inputs is not None:
            self._replay = capture(lambda: self._compiled(self._inputs))
        return self

    def on(self, images: Tensor, graph: bool = True) -> Callable[[], Tensor]:
        """A call that answers for these images, for timing: where there is a graph, its replay alone."""
        if not graph or self._replay is None or tuple(images.shape) != self._shape:
            return functools.partial(self._compiled, images)
        assert self._inputs is not None
        self._inputs.copy_(images)
        return self._replayed

    def _replayed(self) -> Tensor:
        """A method, so that who holds it holds the weights that the graph reads as well."""
        assert self._replay is not None
        return self._replay()

    def _compiled(self, images: Any) -> Tensor:
        with torch.inference_mode():
            return self._run(images)


def optimize(
    model: nn.Module,
    device: str | torch.device | None = None,
    batch: int = 256,
    dtype: str = "bfloat16",
    size: tuple[int, int, int] | None = None,
    repeats: int = 5,
    search: bool = True,
    fp8: bool = False,
) -> Optimized:
    """The fastest equivalent of a fused model here: kernels, layout, compilation, CUDA graph; checked, and remembered.

    `optimized.choice` prints as a table of what was tried and what each step gained. Without `search` every step that
    applies and is known to pay is taken untimed, which saves minutes of compilation. `fp8` allows linear layers as
    fp8 products, which change the answers by a few per cent: taken where they gain, or at once without `search`.

    >>> import leanformer as lf
    >>> fast = lf.optimize(lf.fuse(lean), device="cuda", batch=256)  # doctest: +SKIP
    >>> print(fast.choice)  # doctest: +SKIP
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"unknown dtype '{dtype}'; known: float32, bfloat16, float16")
    if fp8:
        eight_bits.require_fp8(device, dtype)
    plain = copy.deepcopy(model).eval().to(device, kind)
    shape = (batch, *(size or input_of(model)["input_size"]))
    images = torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(0)).to(kind)
    judge = _Judge(model, plain, images)
    key = _key(model, device, shape, dtype, fp8)
    remembered = _recall(key) if search else None
    if not search:
        choice = Choice(batch, _applicable(plain, fp8), graph=device.type == "cuda")
    elif remembered is None:
        choice = _search(plain, images, judge, repeats, fp8)
        _remember(key, choice)
    else:
        attempts = [Attempt(**attempt) for attempt in remembered["attempts"]]
        choice = Choice(batch, remembered["steps"], remembered["graph"], attempts, remembered=True)
    chosen = _rewritten(plain, choice.steps)
    optimized = Optimized(chosen, choice, _laid_out(images, choice.steps))
    choice.error = judge.check("the optimised model", optimized(images), choice.steps)
    return set_card(optimized, card_of(model))  # type: ignore[return-value]


class _Judge:
    """Compares answers with those of the float32 model: a step may err as much as the plain low-precision model."""

    def __init__(self, model: nn.Module, plain: nn.Module, images: Tensor, most: int = 16):
        self.most = most
        with torch.inference_mode():
            exact = copy.deepcopy(model).eval().to(images.device, torch.float32)
            self.truth = exact(images[:most].float())
            self.plain_error = self.error(plain(images[:most]))

    def error(self, output: Tensor) -> float:
        return ((output[: self.most].float() - self.truth).norm() / self.truth.norm().clamp(min=1e-30)).item()

    def allowed(self, steps: list[str]) -> float:
        rounding = 2 * self.plain_error + 1e-4
        return max(rounding, eight_bits.TOLERANCE) if eight_bits.STEP in steps else rounding

    def check(self, what: str, output: Tensor, steps: list[str]) -> float:
        error, allowed = self.error(output), self.allowed(steps)
        if not error <= allowed:
            raise RuntimeError(f"{what} errs by {error:.1e}, more than {allowed:.1e}: this is a bug")
        return error


def _search(plain: nn.Module, images: Tensor, judge: _Judge, repeats: int, fp8: bool) -> Choice:
    choice = Choice(len(images))
    current, call = plain, _compiled_call(plain, images)
    best = interleave({"": call}, images.device, repeats)[""].median
    choice.attempts.append(Attempt("torch.compile", best, judge.error(call()), kept=True))

    def attempt(name: str, new: nn.Module, steps: list[str]) -> None:
        nonlocal current, call
        candidate = _compiled_call(new, _laid_out(images, steps))
        timings = interleave({"old": call, "new": candidate}, images.device, repeats)
        error, gained = judge.error(candidate()), timings["new"].median < WORTH * timings["old"].median
        kept = gained and error <= judge.allowed(steps)
        choice.attempts.append(Attempt(name, timings["new"].median, error, kept))
        if kept:
            current, call, choice.steps = new, candidate, steps

    for name, rewrite in rewrites().items():
        new = rewrite.apply(current)
        if new is not None:
            attempt(name, new, [*choice.steps, name])
    steps = _applied(plain, [eight_bits.STEP, *choice.steps]) if fp8 else []
    if eight_bits.STEP in steps:
        attempt(eight_bits.STEP, _rewritten(plain, steps), steps)
    if images.device.type == "cuda":
        timings = interleave({"old": call, "new": capture(call)}, images.device, repeats)
        choice.graph = timings["new"].median < WORTH * timings["old"].median
        error = next(each.error for each in reversed(choice.attempts) if each.kept)
        choice.attempts.append(Attempt("CUDA graph", timings["new"].median, error, choice.graph))
    return choice


def _compiled_call(model: nn.Module, images: Tensor) -> Callable[[], Tensor]:
    run = torch.compile(model, dynamic=False)

    def call() -> Tensor:
        with torch.inference_mode():
            return run(images)

    return call


def rewritten(model: nn.Module) -> nn.Module:
    """The fused model with every rewrite that applies and is known to pay; not compiled.

    Args:
        model: a fused model on the device and in the dtype in which it will run.
    """
    return _rewritten(model, _applicable(model))


def _laid_out(images: Tensor, steps: list[str]) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last) if "channels last" in steps else images


def _rewritten(model: nn.Module, steps: list[str]) -> nn.Module:
    known = _steps(fp8=True)
    for step in steps:
        if step not in known:
            raise ValueError(f"the remembered step '{step}' is unknown to this version; delete {_memory()}")
        model = known[step].apply(model) or model
    return model


def _steps(fp8: bool) -> dict[str, Rewrite]:
    """All steps in the order in which they are taken: fp8 products come before what would absorb their layers."""
    first = {eight_bits.STEP: Rewrite(eight_bits.STEP, eight_bits.fp8_products)} if fp8 else {}
    return {**first, **rewrites()}


def _applicable(model: nn.Module, fp8: bool = False) -> list[str]:
    """The steps that apply and need no measurement to be taken."""
    return _applied(model, [name for name in _steps(fp8) if name not in WHEN_MEASURED])


def _applied(model: nn.Module, names: list[str]) -> list[str]:
    """Those of the steps that change something, one after the other."""
    known, steps = _steps(fp8=True), []
    for name in names:
        new = known[name].apply(model)
        if new is not None:
            model = new
            steps.append(name)
    return steps


def _memory() -> Path:
    return Path(os.environ.get("LEANFORMER_CACHE", Path.home() / ".cache" / "leanformer")) / "optimize.json"


def _key(model: nn.Module, device: torch.device, shape: tuple[int, ...], dtype: str, fp8: bool) -> str:
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    facts = [repr(model), chip, shape, dtype, versions(), list(_steps(fp8))]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:32]


def _recall(key: str) -> dict[str, Any] | None:
    try:
        return json.loads(_memory().read_text()).get(key)
    except (OSError, json.JSONDecodeError):
        return None


def _remember(key: str, choice: Choice) -> None:
    path = _memory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text()) if path.is_file() else {}
    except (OSError, json.JSONDecodeError):
        known = {}
    attempts = [asdict(attempt) for attempt in choice.attempts]
    known[key] = {"steps": choice.steps, "graph": choice.graph, "attempts": attempts}
    try:
        write_atomically(path, lambda name: Path(name).write_text(json.dumps(known, indent=1)))
    except ValueError:
        return  # a cache that cannot be written only costs the next search
