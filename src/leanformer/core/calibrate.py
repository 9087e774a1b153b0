"""calibrate: fit what a method put into a trained model, slot by slot, to what the teacher computes there.

Blocks are visited in order and each sees the already fitted ones before it, so that errors do not pile up. A slot's
module takes part when it has `fit(x, teacher_x, teacher_y)`: its own input, and the teacher's input and output.
"""

import contextlib
import copy
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .block import blocks_of


@runtime_checkable
class Fittable(Protocol):
    """A slot module that can start from data. All tensors are whole slots: (n, N, C) or (n, C, H, W)."""

    def fit(self, x: Tensor, teacher_x: Tensor, teacher_y: Tensor) -> None: ...


class _Stop(Exception):
    """Ends a forward pass as soon as the wanted tensor is there."""


@torch.no_grad()
def calibrate(model: nn.Module, teacher: nn.Module, images: Tensor | Iterable[Tensor], batch: int = 64) -> nn.Module:
    """A copy of `model` whose new modules are fitted to `teacher` on a few hundred images, without training.

    >>> import torch, leanformer as lf
    >>> teacher = lf.create("deit_tiny_patch16_224", depth=2, img_size=32)
    >>> model = lf.apply(teacher, lf.RePa(idle_ratio=0.5))
    >>> model = lf.calibrate(model, teacher, torch.randn(16, 3, 32, 32))
    """
    batches = list(images.split(batch)) if isinstance(images, Tensor) else list(images)
    new, teacher = copy.deepcopy(model).eval(), copy.deepcopy(teacher).eval()
    for path in _fittable(new):
        x = _input_at(new, path, batches)
        teacher_x = _input_at(teacher, path, batches)
        if teacher_x.shape != x.shape:  # tokens were dropped before: ask the teacher what it makes of ours
            teacher_x = x
        slot = teacher.get_submodule(path)
        teacher_y = torch.cat([slot(part) for part in teacher_x.split(batch)])
        new.get_submodule(path).fit(x, teacher_x, teacher_y)  # type: ignore[operator]
    return new.train(model.training)


def _fittable(model: nn.Module) -> list[str]:
    return [
        f"{path}.{slot}"
        for path, block in blocks_of(model).items()
        for slot in block.slots
        if isinstance(getattr(block, slot), Fittable)
    ]


def _input_at(model: nn.Module, path: str, batches: list[Tensor]) -> Tensor:
    """The input of the module at `path`, for all batches."""
    caught: list[Tensor] = []

    def catch(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        caught.append(inputs[0].detach())
        raise _Stop

    handle = model.get_submodule(path).register_forward_pre_hook(catch)
    try:
        for images in batches:
            with contextlib.suppress(_Stop):
                model(images)
    finally:
        handle.remove()
    return torch.cat(caught)
