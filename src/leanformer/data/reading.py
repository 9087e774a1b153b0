"""Batches from files and from streams, read and augmented by worker processes.

What a worker draws follows from the seed, the epoch and the image's position alone, so it does not matter which worker
it is, nor where a run starts.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from .batches import Stretch, worker_count
from .draws import host_state, seed_all, set_host_state
from .pictures import AugmentationError
from .sources import UNREADABLE, Stream

Read = tuple[list[Tensor], Tensor, tuple[str, ...]]
"""Images in each size on the device, labels, and the names of images that could not be read."""
REPLACEMENTS = 100
"""Images tried in the place of one that cannot be read."""


class Seeded(Dataset):
    """Images augmented from (seed, epoch, position) alone, whichever worker does it; unreadable ones replaced.

    A replacement has draws of its own, from (seed, epoch, position, attempt).
    """

    def __init__(self, data: Any, augment: Any, seed: int):
        self.data, self.augment, self.seed = data, augment, seed

    def made(self, picture: Any, label: Any) -> tuple[Any, Any]:
        """What is learnt from a picture and its label."""
        return self.augment(picture), label

    def __getitem__(self, place: tuple[int, int, int]) -> tuple[Any, Any, str]:
        epoch, position, index = place
        damaged = []
        for attempt in range(min(len(self.data), REPLACEMENTS)):
            chosen = (index + attempt) % len(self.data)
            try:
                picture, label = self.data.picture(chosen)
            except UNREADABLE as error:
                damaged.append(f"{self.data.filename(chosen)}: {error}")
                continue
            seed_all(self.seed, "image", epoch, position, *([attempt] if attempt else []))
            try:
                return *self.made(picture, label), "\n".join(damaged)
            except AugmentationError as error:
                raise AugmentationError(f"{self.data.filename(chosen)}: {error}") from error
        raise ValueError(f"{len(damaged)} images one after another cannot be read; the first:\n  {damaged[0]}")


class Places(Sampler):
    """The places (epoch, position, index) of each micro-batch of this process, from any update on."""

    def __init__(self, stretch: Stretch):
        self.stretch = stretch

    def __len__(self) -> int:
        return (self.stretch.stop - self.stretch.start) * self.stretch.plan.accumulate

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        plan, known, order = self.stretch.plan, -1, []
        for update in range(self.stretch.start, self.stretch.stop):
            epoch = update // plan.updates_per_epoch
            if epoch != known:
                known, order = epoch, plan.order(epoch).tolist()
            for rows in plan.rows(update):
                yield [(epoch, position, order[position]) for position in rows]


def from_files(images: Seeded, stretch: Stretch) -> Iterator[Read]:
    """Batches of images that are read one by one."""
    device, workers = stretch.device, worker_count(stretch.workers)
    loader = DataLoader(
        images, batch_sampler=Places(stretch), num_workers=workers,
        pin_memory=device.type == "cuda", prefetch_factor=4 if workers else None,
    )  # fmt: skip
    for pixels, labels, damaged in loader:
        names = tuple(name for lines in damaged for name in lines.split("\n") if name)
        yield _moved(pixels, device), labels.to(device, non_blocking=True), names


def from_stream(data: Stream, augment: Any, stretch: Stretch) -> Iterator[Read]:
    """A stream cannot be entered in the middle: a resumed epoch is read from its beginning up to where it was."""
    data.dataset.transform = augment
    plan, start, device, workers = stretch.plan, stretch.start, stretch.device, worker_count(stretch.workers)
    size = plan.batch_size // (plan.processes * plan.accumulate)
    first = start // plan.updates_per_epoch
    skip = (start - first * plan.updates_per_epoch) * plan.accumulate
    for epoch in range(first, -(-stretch.stop // plan.updates_per_epoch)):
        if hasattr(data.dataset, "set_epoch"):
            data.dataset.set_epoch(epoch)
        if hasattr(data.dataset, "reader"):
            data.dataset.reader.ds = None  # timm's shuffles go on from the last epoch, which a resumed run never saw
        made = _endless(data, size, workers, plan.updates_per_epoch * plan.accumulate)
        for images, labels in _with_own_draws(made, plan.seed, "stream", epoch, plan.process):
            if skip:
                skip -= 1
            else:
                yield _moved(images, device), labels.to(device), ()


def _with_own_draws(batches: Iterator[Any], *parts: int | str) -> Iterator[Any]:
    """The same batches, made with draws that follow from `parts`, whatever is drawn between one batch and the next."""
    outside = host_state()
    seed_all(*parts)
    own = host_state()
    while True:
        set_host_state(own)
        batch = next(batches, None)
        own = host_state()
        set_host_state(outside)
        if batch is None:
            return
        yield batch
        outside = host_state()


def _moved(images: Any, device: torch.device) -> list[Tensor]:
    """The images of each size on the device, the model's own first."""
    each = [images] if isinstance(images, Tensor) else images
    return [size.to(device, non_blocking=True) for size in each]


def _endless(data: Stream, size: int, workers: int, count: int) -> Iterator[tuple[Any, Tensor]]:
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
