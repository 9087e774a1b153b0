"""calibrate: fit what a method put into a trained model, slot by slot, to what the teacher computes there.

Blocks are visited in order and each sees the already fitted ones before it, so that errors do not pile up. A slot's
module takes part when it is `Calibratable`: its `fit` gets its own input, the teacher's input and output, and the
teacher's slot.
What a finished block answers is kept and replayed to the next one, so the whole costs about one forward pass of both.
"""

import contextlib
import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .block import Block, blocks_of, slots_of
from .card import Card, card_of
from .inputs import check_whole
from .plan import apply
from .reduce import arrangements, same_tokens


@runtime_checkable
class Calibratable(Protocol):
    """A slot module that can start from data. All tensors are whole slots: (n, N, C) or (n, C, H, W)."""

    def fit(self, x: Tensor, teacher_x: Tensor, teacher_y: Tensor, teacher: nn.Module) -> None: ...


@runtime_checkable
class Ramped(Protocol):
    """A slot module that can start training as the module that it replaced and turn into its new form by epochs.

    With `ramp_epochs` above 0 its first form computes with the old module's weights, which a fit to the new form would
    take away.
    """

    ramp_epochs: float


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

        with self.model.get_submodule(path).register_forward_pre_hook(catch):
            for images in self.batches:
                with contextlib.suppress(_Stop):
                    self.model(images)
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


def starts_from(model: nn.Module, teacher: nn.Module) -> bool:
    """Whether a model is this teacher with other modules in some slots: every other tensor is bit-equal.

    The classifier may be another one: what the blocks compute does not depend on it.

    Args:
        model: A model with methods on it.
        teacher: A model of the same input size, on the same device.

    >>> import leanformer as lf
    >>> teacher = lf.create("deit_tiny_patch16_224", depth=1)
    >>> starts_from(lf.apply(teacher, lf.TokenMixer()), teacher), starts_from(lf.create("vit", depth=1), teacher)
    (True, False)
    """
    if list(blocks_of(model)) != list(blocks_of(teacher)) or not blocks_of(model):
        return False
    other = (*_swapped(model, teacher), *_classifiers(model))
    kept = {k: v for k, v in model.state_dict().items() if not k.startswith(tuple(f"{path}." for path in other))}
    theirs = teacher.state_dict()
    return bool(kept) and all(_equal(value, theirs.get(key)) for key, value in kept.items())


def uncalibrated(model: nn.Module, teacher: nn.Module) -> tuple[str, ...]:
    """The slots that can be fitted to the teacher and still hold what `apply` put there.

    Args:
        model: A model that `starts_from` the teacher.
        teacher: The model without the methods, or with some of them.
    """
    swapped = _swapped(model, teacher)
    slots = [path for path in swapped if isinstance(model.get_submodule(path), Calibratable)]
    if not slots:
        return ()
    new = Counter(card_of(model).methods) - Counter(card_of(teacher).methods)
    fresh = apply(teacher, *new.elements())
    return tuple(path for path in slots if _same(model.get_submodule(path), fresh.get_submodule(path)))


def _swapped(model: nn.Module, teacher: nn.Module) -> list[str]:
    """The slots that methods hold in the model and not in the teacher."""
    mine, theirs = (card.claims if isinstance(card := getattr(m, "card", None), Card) else {} for m in (model, teacher))
    return [path for path in mine if path not in theirs]


def _classifiers(model: Any) -> list[str]:
    found = model.get_classifier() if hasattr(model, "get_classifier") else ()
    heads = [id(head) for head in (found if isinstance(found, tuple) else (found,))]
    return [path for path, module in model.named_modules() if path and id(module) in heads]


def _same(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return all(_equal(value, theirs.get(key)) for key, value in one.state_dict().items())


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.dtype == other.dtype and torch.equal(one, other)


@torch.no_grad()
def calibrate(
    model: nn.Module,
    teacher: nn.Module,
    images: Tensor | Iterable[Tensor],
    batch: int = 64,
    slots: Iterable[str] | None = None,
) -> nn.Module:
    """A copy of `model` whose new modules are fitted to `teacher` on a few hundred images, without training.

    Args:
        model: A model with methods on it.
        teacher: The trained model without them.
        images: (n, C, H, W) as the model sees them when it is evaluated, or batches of such.
        batch: Images at a time.
        slots: Paths of the slots to fit; all that can be fitted by default.

    Raises:
        ValueError: There are no images, or a slot of `slots` cannot be fitted.
    """
    check_whole(model)
    check_whole(teacher, "the teacher")
    batches = list(_batches(images, batch))
    new, teacher = copy.deepcopy(model).eval(), copy.deepcopy(teacher).eval()
    chosen = _chosen(new, slots)
    paired = same_tokens(arrangements(new), arrangements(teacher))
    mine, theirs = _Run(new, batches), _Run(teacher, batches)
    for path, block in blocks_of(new).items():
        here = [slot for slot in (f"{path}.{name}" for name in block.slots) if slot in chosen]
        for slot in here:
            _fit(mine, theirs, slot, slot in paired)
        if here:
            mine.finish(path)
            theirs.finish(path)
    mine.restore()
    return new.train(model.training)


def _chosen(model: nn.Module, slots: Iterable[str] | None) -> set[str]:
    """The slots to fit: those named, or all that can be fitted."""
    able = {path for path, slot in slots_of(model).items() if isinstance(slot, Calibratable)}
    chosen = able if slots is None else set(slots)
    wrong = sorted(chosen - able)
    if wrong:
        raise ValueError(
            f"{wrong[0]} is no slot that can be fitted; this model has: {', '.join(sorted(able)) or 'none'}"
        )
    return chosen


def _batches(images: Tensor | Iterable[Tensor], batch: int) -> Iterator[Tensor]:
    """The images in batches; refuses where there is none."""
    found = False
    for part in images.split(batch) if isinstance(images, Tensor) else images:
        if len(part):
            found = True
            yield part
    if not found:
        raise ValueError("there are no images to calibrate by; give at least one batch")


def _fit(mine: _Run, theirs: _Run, path: str, paired: bool) -> None:
    """Fit one slot; where its tokens are not the teacher's one by one, to what the teacher makes of ours."""
    xs = mine.input_of(path)
    teacher_xs = theirs.input_of(path) if paired else xs
    slot = theirs.model.get_submodule(path)
    teacher_y = torch.cat([slot(x) for x in teacher_xs])
    mine.model.get_submodule(path).fit(torch.cat(xs), torch.cat(teacher_xs), teacher_y, slot)  # type: ignore[operator]


@torch.no_grad()
def recalibrate(model: nn.Module, images: Tensor | Iterable[Tensor], batch: int = 64) -> nn.Module:
    """A copy of `model` whose batch norms hold the plain mean of the statistics of all batches (precise BN).

    The moving averages of training lag behind the weights and see augmented images; fuse folds whatever they hold.
    Everything but the batch norms runs in evaluation mode.

    Args:
        model: A model with batch norms.
        images: (n, C, H, W) as the model sees them when it is evaluated, or batches of such.
        batch: Images at a time.

    Raises:
        ValueError: There are no images, or the model has no batch norm.

    >>> recalibrate(nn.BatchNorm2d(3), torch.ones(16, 3, 8, 8)).running_mean
    tensor([1., 1., 1.])
    """
    new = copy.deepcopy(model).eval()
    norms = [m for m in new.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        raise ValueError(f"{type(model).__name__} has no batch norm to recalibrate")
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.train().momentum = None  # the plain mean over batches
    for part in _batches(images, batch):
        new(part)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return new.train(model.training)
