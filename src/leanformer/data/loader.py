"""Batches for training, each a pure function of (seed, update): a run can start anywhere and sees the same images.

    order of epoch e = permutation from (seed, e), each index repeated       update u of e takes its B rows from it
    process p of P takes every P-th row, micro-batch m its part of those

Nothing here keeps a state that would have to be saved.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from .augment import Augment
from .draws import key_of, seed_all
from .options import Augmentation
from .sources import UNREADABLE, Arrays, Data, Files, Stream


@dataclass(frozen=True)
class Plan:
    """How a run cuts its data into batches."""

    images: int
    batch_size: int
    seed: int = 0
    repeats: int = 1
    accumulate: int = 1
    processes: int = 1
    process: int = 0

    def __post_init__(self) -> None:
        if self.batch_size % (self.processes * self.accumulate):
            raise ValueError(
                f"a batch of {self.batch_size} does not divide into {self.processes} processes "
                f"x {self.accumulate} accumulation steps"
            )
        if self.images < self.batch_size:
            raise ValueError(f"a batch of {self.batch_size} is more than the {self.images} images; set a smaller one")

    @property
    def updates_per_epoch(self) -> int:
        return self.images // self.batch_size

    def order(self, epoch: int) -> Tensor:
        """Image indices of an epoch, by position."""
        generator = torch.Generator().manual_seed(key_of(self.seed, "order", epoch) % 2**63)
        order = torch.randperm(self.images, generator=generator)  # (n,)
        return order.repeat_interleave(self.repeats)[: self.images] if self.repeats > 1 else order

    def rows(self, update: int) -> list[range]:
        """Positions within its epoch of this process's images in an update, one range a micro-batch."""
        first = (update % self.updates_per_epoch) * self.batch_size
        mine = range(first + self.process, first + self.batch_size, self.processes)
        size = len(mine) // self.accumulate
        return [mine[m * size : (m + 1) * size] for m in range(self.accumulate)]


@dataclass
class Batch:
    """One micro-batch on the device; `damaged` names images that another one stands in for."""

    images: Tensor
    labels: Tensor
    damaged: tuple[str, ...] = ()


def training_batches(
    data: Data,
    plan: Plan,
    recipe: Augmentation,
    config: dict[str, Any],
    device: torch.device,
    start: int,
    stop: int,
    workers: int,
    quick: bool = False,
) -> Iterator[Batch]:
    """The micro-batches of updates `start` to `stop`, in order; `quick` compiles what is done to images on the device.

    Compiled, the hundred small steps of an augmentation are a few kernels; RandAugment's choices stay as they are.
    """
    if isinstance(data, Arrays):
        augment = augment_of(recipe, config, half=quick and recipe.auto_augment is None)
        return _from_arrays(data.to(device), plan, augment, start, stop)
    transform = _transform(recipe, config)
    if isinstance(data, Files):
        return _from_files(data, plan, transform, device, start, stop, workers)
    return _from_stream(data, plan, transform, device, start, stop, workers)


def augment_of(recipe: Augmentation, config: dict[str, Any], half: bool = False) -> Augment:
    """The recipe's augmentation for a model's input size and normalisation."""
    return Augment(recipe, tuple(config["input_size"][1:]), tuple(config["mean"]), tuple(config["std"]), half)


def _from_arrays(data: Arrays, plan: Plan, augment: Augment, start: int, stop: int) -> Iterator[Batch]:
    view = torch.compile(augment.__call__, dynamic=False) if augment.half else augment
    epoch, order = -1, torch.empty(0)
    key: int | Tensor = 0
    for update in range(start, stop):
        if update // plan.updates_per_epoch != epoch:
            epoch = update // plan.updates_per_epoch
            order = plan.order(epoch).to(data.images.device)  # (n,)
            key = key_of(plan.seed, "augment", epoch)
            if augment.half:
                key = torch.tensor(key, device=order.device)  # as a number it would be compiled in
        for rows in plan.rows(update):
            positions = torch.arange(rows.start, rows.stop, rows.step, device=order.device)  # (b,)
            indices = order[positions]
            yield Batch(view(data.images[indices], positions, key), data.labels[indices])


def _transform(recipe: Augmentation, config: dict[str, Any]) -> Any:
    return create_transform(
        input_size=config["input_size"],
        is_training=True,
        scale=recipe.crop_scale,
        ratio=recipe.crop_ratio,
        hflip=recipe.flip,
        color_jitter=recipe.color_jitter or None,  # type: ignore[arg-type]
        auto_augment=recipe.auto_augment,
        interpolation=recipe.interpolation,
        mean=config["mean"],
        std=config["std"],
        re_prob=recipe.erasing,
        re_mode="pixel",
        normalize=True,
    )


class _Seeded(Dataset):
    """Images augmented from (seed, epoch, position) alone, whichever worker does it; unreadable ones replaced."""

    def __init__(self, data: Files, transform: Any, seed: int):
        self.data, self.transform, self.seed = data, transform, seed

    def __getitem__(self, place: tuple[int, int, int]) -> tuple[Tensor, int, str]:
        epoch, position, index = place
        damaged = []
        for other in range(min(len(self.data), 100)):
            chosen = (index + other) % len(self.data)
            seed_all(self.seed, "image", epoch, position)
            try:
                picture, label = self.data.picture(chosen)
                return self.transform(picture), label, "\n".join(damaged)
            except UNREADABLE as error:
                damaged.append(f"{self.data.filename(chosen)}: {error}")
        raise ValueError("a hundred images one after another cannot be read; the first:\n  " + damaged[0])


class _Places(Sampler):
    """The places (epoch, position, index) of each micro-batch of this process, from any update on."""

    def __init__(self, plan: Plan, start: int, stop: int):
        self.plan, self.start, self.stop = plan, start, stop

    def __len__(self) -> int:
        return (self.stop - self.start) * self.plan.accumulate

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        known, order = -1, []
        for update in range(self.start, self.stop):
            epoch = update // self.plan.updates_per_epoch
            if epoch != known:
                known, order = epoch, self.plan.order(epoch).tolist()
            for rows in self.plan.rows(update):
                yield [(epoch, position, order[position]) for position in rows]


def _from_files(
    data: Files, plan: Plan, transform: Any, device: torch.device, start: int, stop: int, workers: int
) -> Iterator[Batch]:
    loader = DataLoader(
        _Seeded(data, transform, plan.seed), batch_sampler=_Places(plan, start, stop), num_workers=workers,
        pin_memory=device.type == "cuda", prefetch_factor=4 if workers else None,
    )  # fmt: skip
    for images, labels, damaged in loader:
        names = tuple(name for lines in damaged for name in lines.split("\n") if name)
        yield Batch(images.to(device, non_blocking=True), labels.to(device, non_blocking=True), names)


def _from_stream(
    data: Stream, plan: Plan, transform: Any, device: torch.device, start: int, stop: int, workers: int
) -> Iterator[Batch]:
    """A stream cannot be entered in the middle: a resumed epoch is read from its beginning up to where it was."""
    data.dataset.transform = transform
    size = plan.batch_size // (plan.processes * plan.accumulate)
    first = start // plan.updates_per_epoch
    skip = (start - first * plan.updates_per_epoch) * plan.accumulate
    for epoch in range(first, -(-stop // plan.updates_per_epoch)):
        if hasattr(data.dataset, "set_epoch"):
            data.dataset.set_epoch(epoch)
        if hasattr(data.dataset, "reader"):
            data.dataset.reader.ds = None  # timm's shuffles go on from the last epoch, which a resumed run never saw
        seed_all(plan.seed, "stream", epoch, plan.process)
        for images, labels in _endless(data, size, workers, plan.updates_per_epoch * plan.accumulate):
            if skip:
                skip -= 1
            else:
                yield Batch(images.to(device), labels.to(device))


def _endless(data: Stream, size: int, workers: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """`count` batches of a stream, read from its beginning again where it runs out."""
    given = 0
    while given < count:
        before = given
        for batch in DataLoader(data.dataset, batch_size=size, num_workers=workers, drop_last=True):
            yield batch
            given += 1
            if given == count:
                return
        if given == before:
            raise ValueError(f"{data.name} does not give one whole batch of {size} images")
