"""optimize: which steps make a model faster here, found by timing, and the model that has taken them.

Three ways to find out: each module alone ("modules", the default, seconds a kind of module), the whole model after
every step ("model", minutes), or no timing at all (False): what a committed table says of this chip.
"""

import copy
import dataclasses
from collections.abc import Collection
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core import H200, LocalRewrite, OptimisesInside, Rewrite, card_of, input_of, plain_of, set_card
from ..measure.timing import interleave
from . import alone
from . import fp8 as eight_bits
from .asked import check_counts, device_asked, dtype_asked, way_asked
from .compiled import Compiled, Graph
from .judge import Judge
from .memory import chip_name, described, key_of, recall, remember
from .optimized import Attempt, Choice, Optimized
from .rewrite import CHANNELS_LAST, rewrites

GRAPH = "CUDA graph"


@dataclasses.dataclass
class Task:
    """A model to be optimised: as it was given, in the device's dtype, and a batch of the size that counts."""

    model: nn.Module
    plain: nn.Module
    images: Tensor
    judge: Judge
    repeats: int
    fp8: bool

    @classmethod
    def of(cls, model: nn.Module, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...], **how: Any) -> Any:
        """The task for a fused model, at a shape (B, C, H, W) of images."""
        plain = copy.deepcopy(model).eval().to(device, dtype)
        images = torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(0)).to(dtype)
        return cls(model, plain, images, Judge(model, plain, images), **how)

    @property
    def chip(self) -> str:
        return chip_name(self.images.device)


@dataclasses.dataclass
class Form:
    """A candidate: what was chosen, the rewritten model, and that compiled."""

    choice: Choice
    module: nn.Module
    compiled: Compiled

    @classmethod
    def of(cls, task: Task, choice: Choice) -> "Form":
        """The task's model after the steps of a choice."""
        module = after_steps(task.plain, choice)
        return cls(choice, module, Compiled(module))

    def call(self, images: Tensor) -> Any:
        laid_out = _laid_out(images, self.choice.steps)
        return lambda: self.compiled(laid_out)


def optimize(
    model: nn.Module,
    device: str | torch.device | None = None,
    batch: int = 256,
    dtype: str | None = None,
    size: tuple[int, int, int] | None = None,
    repeats: int = 5,
    search: bool | Literal["modules", "model"] = True,
    fp8: bool = False,
) -> Optimized:
    """The fastest equivalent of a fused model here: kernels, layout, compilation, CUDA graph; checked, and remembered.

    `optimized.choice` prints as a table of what was tried and what each step gained. The model that comes back is a
    model like any other: `lf.save` writes it, and `lf.load` gives the fast form again on a device of the same kind.
    Of a detector the backbone is optimised; its file holds the plain form.

    Args:
        model: a fused model; it is left as it was.
        device: where it is to run; by default the GPU if there is one.
        batch: how many images come at once.
        dtype: "float32", "bfloat16" or "float16"; by default bfloat16 on a GPU and float32 on a CPU.
        size: channels, height and width of the images; by default the model's own.
        repeats: how often each candidate is timed.
        search: "modules" (or True) times what each step changes, module by module; "model" times the whole model after
            each step, which takes minutes; False times nothing and takes the steps that are known to pay on this chip.
        fp8: allow linear layers as fp8 products, which change the answers by a few per cent: taken where they gain, or
            at once without search.

    Raises:
        ValueError: for a dtype, a search or a device that there is not.
        RuntimeError: if the fast model does not answer as the plain one does, which is a bug.

    >>> import leanformer as lf
    >>> fast = lf.optimize(lf.fuse(lean), device="cuda", batch=256)  # doctest: +SKIP
    >>> print(fast.choice)  # doctest: +SKIP
    """
    if isinstance(inner := plain_of(model), OptimisesInside):
        how: dict[str, Any] = {"batch": batch, "dtype": dtype, "size": size, "repeats": repeats}
        return inner.optimised_inside(optimize, device=device, search=search, fp8=fp8, **how)  # type: ignore[return-value]
    check_counts(batch=batch, repeats=repeats)
    device, model, way = device_asked(device), plain_of(model), way_asked(search)
    dtype = dtype_asked(dtype, device)
    if fp8:
        eight_bits.require_fp8(device, dtype)
    shape = (batch, *(size or input_of(model)["input_size"]))
    task = Task.of(model, device, getattr(torch, dtype), shape, repeats=repeats, fp8=fp8)
    if way is None:
        return finished(task, Form.of(task, Choice(batch, known_to_pay(task.plain, task.chip, fp8))))
    key = key_of(way, described(model), task.chip, shape, dtype, list(all_steps(fp8)))
    known = recall(key)
    if known is not None:
        choice = Choice.from_json(batch, known)
        choice.remembered = True
        return finished(task, Form.of(task, choice), graph=choice.graph)
    fast = finished(task, _by_modules(task) if way == "modules" else _by_model(task))
    remember(key, fast.choice.as_json())
    return fast


def finished(task: Task, form: Form, graph: bool | None = None) -> Optimized:
    """The form as a model, judged before and after compilation.

    Args:
        task: what was to be done.
        form: the candidate that won.
        graph: whether to replay a CUDA graph; None to find out.
    """
    choice = form.choice
    verdict = task.judge.judged("the optimised model", form.module, choice.steps)
    choice.error, choice.differing = verdict.error, verdict.differing
    choice.graph = _graph_pays(task, form) if graph is None else graph
    plain = set_card(copy.deepcopy(task.model).cpu().eval(), card_of(task.model).replace(optimised=None))
    fast = Optimized(form.compiled, plain, choice, _laid_out(task.images, choice.steps))
    task.judge.check_compiled("the compiled model", fast(task.images), verdict)
    batch, *size = task.images.shape
    steps = {"steps": choice.steps, "places": choice.places, "graph": choice.graph}
    dtype = str(task.images.dtype).removeprefix("torch.")
    card = card_of(plain).replace(
        optimised={**steps, "batch": batch, "size": size, "dtype": dtype, "device": task.chip}
    )
    return set_card(fast, card)  # type: ignore[return-value]


def after_steps(model: nn.Module, choice: Choice) -> nn.Module:
    """The model after the steps of a choice, in the places where they were taken.

    A step that finds nothing to do is struck from the choice: another one may have taken what it would change.
    """
    known = all_steps(fp8=True)
    for step in tuple(choice.steps):
        rewrite = known[step]
        local = isinstance(rewrite, LocalRewrite)
        new = rewrite.apply(model, choice.places.get(step)) if local else rewrite.apply(model)
        if new is None:
            choice.steps.remove(step)
            choice.places.pop(step, None)
        model = model if new is None else new
    return model


def rewritten(model: nn.Module) -> nn.Module:
    """The fused model with every rewrite that applies and is known to pay on its device; not compiled.

    Args:
        model: a fused model on the device and in the dtype in which it will run.
    """
    chip = chip_name(next(model.parameters()).device)
    return after_steps(model, Choice(0, known_to_pay(model, chip)))


def all_steps(fp8: bool) -> dict[str, Rewrite | LocalRewrite]:
    """All steps in the order in which they are taken: fp8 products come before what would absorb their layers."""
    first = {eight_bits.STEP: Rewrite(eight_bits.STEP, eight_bits.fp8_products)} if fp8 else {}
    return {**first, **rewrites()}


def known_to_pay(model: nn.Module, chip: str, fp8: bool = False) -> list[str]:
    """The steps that change something and were measured to pay on this chip for models like this one."""
    steps, new = [], model
    for name, rewrite in all_steps(fp8).items():
        changed = rewrite.apply(new) if name == eight_bits.STEP or rewrite.pays(chip, model) else None
        if changed is not None:
            new = changed
            steps.append(name)
    return steps


def _by_modules(task: Task) -> Form:
    """Each step where modules alone are faster with it; steps that change the whole model by a race of whole models."""
    forms = [_of_faster_modules(task, frozenset())]
    if CHANNELS_LAST.apply(forms[0].module) is not None:
        forms.append(_of_faster_modules(task, frozenset({CHANNELS_LAST.name})))
    if task.fp8:
        forms.append(_of_faster_modules(task, frozenset({eight_bits.STEP})))
    if len(forms) == 1:
        return forms[0]
    calls = {index: form.call(task.images) for index, form in enumerate(forms)}
    timings, best, attempts = interleave(calls, task.images.device, task.repeats), 0, []
    for index, form in enumerate(forms):
        verdict = task.judge.verdict(form.module, form.choice.steps)
        gained = not index or timings[index].median < alone.WORTH * timings[best].median
        best = index if gained and verdict.right else best
        steps = ", ".join(form.choice.steps) or "torch.compile"
        attempts.append(Attempt(steps, timings[index].median, verdict.error, kept=False))
    attempts[best].kept = True
    forms[best].choice.attempts = attempts
    return forms[best]


def _of_faster_modules(task: Task, whole: Collection[str]) -> Form:
    """The model with these steps that change all of it, and every local step in the places where it pays."""
    choice, model = Choice(len(task.images)), task.plain
    images = _laid_out(task.images, list(whole))
    for name, rewrite in all_steps(fp8=True).items():
        if isinstance(rewrite, LocalRewrite):
            places, timed = alone.paying_places(rewrite, model, images, task.repeats)
            choice.timed += timed
            choice.places |= {name: places} if 0 < len(places) < len(rewrite.places(model)) else {}
            new = rewrite.apply(model, places)
        else:
            new = rewrite.apply(model) if name in whole else None
        if new is not None:
            model = new
            choice.steps.append(name)
    return Form(choice, model, Compiled(model))


def _by_model(task: Task) -> Form:
    """The whole model compiled and timed after each step in turn; a step stays where it gains."""
    best = Form.of(task, Choice(len(task.images)))
    seconds = interleave({"": best.call(task.images)}, task.images.device, task.repeats)[""].median
    attempts = [Attempt("torch.compile", seconds, task.judge.verdict(task.plain, []).error, kept=True)]
    for name in [*rewrites(), *([eight_bits.STEP] if task.fp8 else [])]:
        steps = [step for step in all_steps(fp8=True) if step in (*best.choice.steps, name)]
        if all_steps(fp8=True)[name].apply(best.module) is None:
            continue
        form = Form.of(task, Choice(len(task.images), steps))
        calls = {"old": best.call(task.images), "new": form.call(task.images)}
        timings = interleave(calls, task.images.device, task.repeats)
        verdict = task.judge.verdict(form.module, steps)
        kept = verdict.right and timings["new"].median < alone.WORTH * timings["old"].median
        attempts.append(Attempt(name, timings["new"].median, verdict.error, kept))
        best = form if kept else best
    best.choice.attempts = attempts
    return best


def _graph_pays(task: Task, form: Form) -> bool:
    """Whether replaying a recording beats calling the compiled model."""
    if task.images.device.type != "cuda":
        return False
    if task.chip in H200:
        return True
    images = _laid_out(task.images, form.choice.steps)
    calls = {"call": form.call(task.images), "graph": Graph(form.compiled, (images,))}
    timings = interleave(calls, task.images.device, task.repeats)
    kept = timings["graph"].median < alone.WORTH * timings["call"].median
    form.choice.attempts.append(Attempt(GRAPH, timings["graph"].median, form.choice.error or 0.0, kept))
    return kept


def _laid_out(images: Tensor, steps: Collection[str]) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last) if CHANNELS_LAST.name in steps else images
