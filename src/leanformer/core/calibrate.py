"""calibrate: fit what a method put into a trained model, slot by slot, to what the teacher computes there.

Blocks are visited in order and each sees the already fitted ones before it, so that errors do not pile up. A slot's
module takes part when it has `fit`: it is given its own input, the teacher's input and output, and the teacher's slot.
What a finished block answers is kept and replayed to the next one, so the whole costs about one forward pass of both.
"""

import contextlib
import copy
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .block import Block, blocks_of


@runtime_checkable
class Fittable(Protocol):
    """A slot module that can start from data. All tensors are whole slots: (n, N, C) or (n, C, H, W)."""

    def fit(self, x: Tensor, teacher_x: Tensor, teacher_y: Tensor, teacher: nn.Module) -> None: ...


class _Stop(Exception):
    """Ends a forward pass as soon as the wanted tensor is there."""


class _Replay(nn.Module):
    """Stands for a finished block: its outputs, batch by batch; before the last finished block, nothing at all."""

    def __init__(self, outputs: list[Tensor] | None = None):
        super().__init__()
        self.outputs = outputs
        self.calls = 0

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.outputs is None:
            return x
        self.calls += 1
        return self.outputs[(self.calls - 1) % len(self.outputs)]


class _Run:
    """A model on fixed batches whose finished blocks are replayed instead of computed."""

    def __init__(self, model: nn.Module, batches: list[Tensor]):
        self.model = model
        self.batches = batches
        self.order = list(blocks_of(model))
        self.finished: dict[str, Block] = {}

    def input_of(self, path: str) -> list[Tensor]:
        """The inputs of the module at `path`, one for each batch."""
        caught: list[Tensor] = []

        def catch(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            caught.append(inputs[0].detach())
            raise _Stop

        handle = self.model.get_submodule(path).register_forward_pre_hook(catch)
        try:
            for images in self.batches:
                with contextlib.suppress(_Stop):
                    self.model(images)
        finally:
            handle.remove()
        return caught

    def finish(self, path: str) -> None:
        """Replay the block at `path` from now on, and skip the blocks before it."""
        block = self.model.get_submodule(path)
        outputs = [block(x) for x in self.input_of(path)]
        for earlier in self.order[: self.order.index(path)]:
            self._replace(earlier, _Replay())
        self._replace(path, _Replay(outputs))

    def restore(self) -> None:
        for path, block in self.finished.items():
            self.model.set_submodule(path, block)

    def _replace(self, path: str, stand_in: nn.Module) -> None:
        block = self.model.get_submodule(path)
        if isinstance(block, Block):
            self.finished[path] = block
        self.model.set_submodule(path, stand_in)


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
    mine, theirs = _Run(new, batches), _Run(teacher, batches)
    for path, block in blocks_of(new).items():
        slots = [f"{path}.{slot}" for slot in block.slots if isinstance(getattr(block, slot), Fittable)]
        for slot in slots:
            _fit(mine, theirs, slot)
        if slots:
            mine.finish(path)
            theirs.finish(path)
    mine.restore()
    return new.train(model.training)


def _fit(mine: _Run, theirs: _Run, path: str) -> None:
    xs, teacher_xs = mine.input_of(path), theirs.input_of(path)
    if teacher_xs[0].shape != xs[0].shape:  # tokens were dropped before: ask the teacher what it makes of ours
        teacher_xs = xs
    slot = theirs.model.get_submodule(path)
    teacher_y = torch.cat([slot(x) for x in teacher_xs])
    mine.model.get_submodule(path).fit(torch.cat(xs), torch.cat(teacher_xs), teacher_y, slot)  # type: ignore[operator]


@torch.no_grad()
def recalibrate(model: nn.Module, images: Tensor | Iterable[Tensor], batch: int = 64) -> nn.Module:
    """A copy of `model` whose batch norms hold the plain mean of the statistics of all batches (precise BN).

    The moving averages of training lag behind the weights and see augmented images; fuse folds whatever they hold.
    Everything but the batch norms runs in evaluation mode.

    >>> import torch, leanformer as lf
    >>> model = lf.apply(lf.create("deit_tiny_patch16_224", depth=2, img_size=32), lf.RePa())
    >>> model = lf.recalibrate(model, torch.randn(16, 3, 32, 32))
    """
    batches = list(images.split(batch)) if isinstance(images, Tensor) else images
    new = copy.deepcopy(model).eval()
    norms = [m for m in new.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        raise ValueError(f"{type(model).__name__} has no batch norm to recalibrate")
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.train().momentum = None  # the plain mean over batches
    for part in batches:
        new(part)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return new.train(model.training)
