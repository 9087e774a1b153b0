"""What a local rewrite gains, timed on single modules: the old one against the new, on the inputs it gets in the model.

A module compiles in seconds where a model takes minutes. Modules that look alike and take alike inputs are timed once,
and what was found is remembered by module, inputs, chip and versions.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core import LocalRewrite
from ..core.reduce import held, recorded
from ..measure.timing import interleave
from .compiled import Compiled, Graph
from .memory import chip_name, described, key_of, recall, remember
from .optimized import Timed

WORTH = 0.995
"""A step is kept where the time falls below this share."""
SECONDS = 0.02
"""How long one repeat of one module runs at least."""
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest difference between old and new module, as a share of the output: GELU's two forms, and rounding."""


@dataclass
class Alike:
    """Modules that look alike and were called with alike inputs: where they are, and what one of them got."""

    paths: list[str]
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    signature: str


def paying_places(
    rewrite: LocalRewrite, model: nn.Module, images: Tensor, repeats: int
) -> tuple[list[str], list[Timed]]:
    """Paths of the modules that a rewrite makes faster here, and what was timed to find out.

    Args:
        rewrite: the step.
        model: a model in the dtype and on the device that count.
        images: a batch of the size that counts.
        repeats: how often each module is timed.
    """
    timed, gain, loss = [], set(), set()
    for alike in met(model, rewrite.places(model), images):
        module = model.get_submodule(alike.paths[0])
        key = key_of("module", rewrite.name, described(module), alike.signature, chip_name(images.device))
        known = recall(key)
        if known is None:
            known = _compared(module, rewrite, alike, images.device, repeats)
            remember(key, known)
        kept = known["same"] and known["after"] < WORTH * known["before"]
        (gain if kept else loss).update(alike.paths)
        what = f"{type(module).__name__} {_shape(alike)}"
        timed.append(Timed(rewrite.name, what, len(alike.paths), known["before"], known["after"], kept))
    return [path for path in rewrite.places(model) if path in gain - loss], timed


@torch.inference_mode()
def met(model: nn.Module, paths: list[str], images: Tensor) -> list[Alike]:
    """The modules at these paths in groups, as one forward pass calls them; those that are never called are in none."""
    groups: dict[str, Alike] = {}
    with _before_calls(model, paths) as calls:
        model(images)
    for path, arguments, named in calls:
        signature = f"{arguments_signature(arguments)} {arguments_signature(named)}"
        key = f"{described(model.get_submodule(path))} {signature}"
        alike = groups.setdefault(key, Alike([], arguments, named, signature))
        if path not in alike.paths:
            alike.paths.append(path)
    return list(groups.values())


def arguments_signature(value: Any) -> str:
    """What decides how fast a call is: shapes, strides and dtypes of tensors, and all else as it is.

    >>> arguments_signature((torch.zeros(2, 3), 5))
    '((2, 3) (3, 1) torch.float32, 5)'
    """
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {value.stride()} {value.dtype}"
    if isinstance(value, tuple | list):
        return f"({', '.join(arguments_signature(each) for each in value)})"
    if isinstance(value, dict):
        return f"({', '.join(f'{name}={arguments_signature(each)}' for name, each in value.items())})"
    return repr(value)


@contextmanager
def _before_calls(model: nn.Module, paths: list[str]) -> Iterator[list[tuple[str, tuple[Any, ...], dict[str, Any]]]]:
    """Within the context, what each of these modules is called with."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def note(path: str) -> Any:
        return lambda module, arguments, named: calls.append((path, arguments, named))

    with ExitStack() as hooks:
        for path in paths:
            hooks.enter_context(model.get_submodule(path).register_forward_pre_hook(note(path), with_kwargs=True))
        yield calls


def _compared(
    module: nn.Module, rewrite: LocalRewrite, alike: Alike, device: torch.device, repeats: int
) -> dict[str, Any]:
    """Seconds of a call before and after, and whether both answer the same."""
    old, new = copy.deepcopy(module), rewrite.replacement(copy.deepcopy(module))
    calls = {name: _call(each, alike, device) for name, each in (("before", old), ("after", new))}
    timings = interleave(calls, device, repeats, seconds=SECONDS)
    return {**{name: timing.median for name, timing in timings.items()}, "same": _same(old, new, alike)}


def _call(module: nn.Module, alike: Alike, device: torch.device) -> Any:
    """The compiled module on its inputs; on a GPU as a graph, so that no launch is timed that the model lacks."""
    compiled = Compiled(module)
    if device.type == "cuda":
        return Graph(compiled, alike.arguments, alike.named)
    return lambda: compiled(*alike.arguments, **alike.named)


@torch.inference_mode()
def _same(old: nn.Module, new: nn.Module, alike: Alike) -> bool:
    """Whether both give the same, tokens chosen alike."""
    with recorded(old) as chosen:
        truth = old(*alike.arguments, **alike.named)
    with held(new, chosen):
        found = new(*alike.arguments, **alike.named)
    if not isinstance(truth, Tensor) or not truth.is_floating_point():
        return True  # the judge of the whole model looks at what comes of it
    error = (found.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-30)
    return bool(error <= TOLERANCE.get(truth.dtype, 1e-3))


def _shape(alike: Alike) -> tuple[int, ...]:
    """The shape of the first tensor that such a module takes."""
    given = (*alike.arguments, *alike.named.values())
    return next((tuple(each.shape) for each in given if isinstance(each, Tensor)), ())
