"""Batches for training, each a pure function of (seed, update): a run can start anywhere and sees the same images.

    order of epoch e = permutation from (seed, e), each index repeated       update u of e takes its B rows from it
    process p of P takes every P-th row, micro-batch m its part of those

Models of other input sizes (teachers) get the same view of each image, made at their size from the original pixels.
Nothing here keeps a state that would have to be saved.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from .augment import Augment
from .crops import PictureCrops, array_crops
from .draws import host_state, key_of, seed_all, set_host_state
from .options import Augmentation
from .pictures import AugmentationError, PictureAugment, Size
from .sources import UNREADABLE, Arrays, Data, Files, Stream

MOST_WORKERS = 16
"""Processes that read images, by default, however many cores there are."""
REPLACEMENTS = 100
"""Images tried in the place of one that cannot be read."""


def worker_count(workers: int | None) -> int:
    """Processes that read images: so many as asked for, by default one for each core that this process may use.

    Args:
        workers: How many; None for the default. 0 reads in the process itself.

    >>> worker_count(3), worker_count(None) >= 1
    (3, True)
    """
    if workers is not None:
        return workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    together = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # processes of one run on this machine share its cores
    return max(1, min(MOST_WORKERS, cores // together))


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

    images: Any
    """(B, C, H, W); of detectors a list of (C, H, W) of any sizes."""
    labels: Any
    """Class indices, -1 for images without labels; after mixing, what the objective compares with. Of other tasks the
    targets that they learn from."""
    damaged: tuple[str, ...] = ()
    views: dict[Size, Tensor] = field(default_factory=dict)
    """The same images in other sizes, for teachers, by (height, width)."""
    crops: tuple[Tensor, ...] = ()
    """Several crops of each image, each with draws of its own, where an objective asks for them."""


def training_batches(
    data: Data,
    plan: Plan,
    recipe: Augmentation,
    config: dict[str, Any],
    device: torch.device,
    start: int,
    stop: int,
    workers: int | None,
    quick: bool = False,
    sizes: Sequence[Size] = (),
    crops: Sequence[tuple[Augmentation, Size]] = (),
) -> Iterator[Batch]:
    """The micro-batches of updates `start` to `stop`, in order.

    Args:
        data: Where the images come from.
        plan: How they are cut into batches.
        recipe: How they are augmented.
        config: What `core.input_of` gives of the model that is trained.
        device: Where batches are wanted.
        start: The first update.
        stop: The update after the last one.
        workers: Processes that read files; None: as many as there are cores.
        quick: Compile what is done to images on the device: the hundred small steps of an augmentation become a few
            kernels. RandAugment's choices stay as they are.
        sizes: Further sizes (height, width) that the same views are wanted in.
        crops: Instead of one view of an image, these crops of it: how each is augmented, and its size.
    """
    if crops:
        made = _crops(data, plan, crops, config, device, start, stop, worker_count(workers))
        return (Batch(images[0], labels, damaged, crops=tuple(images)) for images, labels, damaged in made)
    if isinstance(data, Arrays):
        augment = augment_of(recipe, config, half=quick and recipe.auto_augment is None)
        return _from_arrays(data.to(device), plan, [augment, *(replace(augment, size=s) for s in sizes)], start, stop)
    augment = PictureAugment(recipe, config, sizes)
    read = _from_files if isinstance(data, Files) else _from_stream
    batches = read(data, plan, augment, device, start, stop, worker_count(workers))  # type: ignore[arg-type]
    return _with_views(batches, sizes)


def augment_of(recipe: Augmentation, config: dict[str, Any], half: bool = False) -> Augment:
    """The recipe's augmentation for a model's input size and normalisation."""
    return Augment(recipe, tuple(config["input_size"][1:]), tuple(config["mean"]), tuple(config["std"]), half)


def _from_arrays(data: Arrays, plan: Plan, augments: list[Augment], start: int, stop: int) -> Iterator[Batch]:
    """Batches augmented on the device; every size from the same pixels and the same draws."""
    half = augments[0].half
    first, *more = [torch.compile(each.__call__, dynamic=False) if half else each for each in augments]
    sizes = [each.size for each in augments[1:]]
    epoch, order = -1, torch.empty(0)
    key: int | Tensor = 0
    for update in range(start, stop):
        if update // plan.updates_per_epoch != epoch:
            epoch = update // plan.updates_per_epoch
            order = plan.order(epoch).to(data.images.device)  # (n,)
            key = key_of(plan.seed, "augment", epoch)
            if half:
                key = torch.tensor(key, device=order.device)  # as a number it would be compiled in
        for rows in plan.rows(update):
            positions = torch.arange(rows.start, rows.stop, rows.step, device=order.device)  # (b,)
            indices = order[positions]
            pixels = data.images[indices]
            images = first(pixels, positions, key)  # before the views, so that it does not depend on them
            views = {size: view(pixels, positions, key) for size, view in zip(sizes, more)}
            yield Batch(images, data.labels[indices], views=views)


def _crops(
    data: Data,
    plan: Plan,
    crops: Sequence[tuple[Augmentation, Size]],
    config: dict[str, Any],
    device: torch.device,
    start: int,
    stop: int,
    workers: int,
) -> Iterator[tuple[list[Tensor], Tensor, tuple[str, ...]]]:
    """Batches of several crops an image, each crop with draws of its own."""
    channels = config["input_size"][0]
    configs = [{**config, "input_size": (channels, *size)} for _, size in crops]
    if isinstance(data, Arrays):
        seeds = [plan.seed, *(key_of(plan.seed, "crop", index) for index in range(1, len(crops)))]
        augments = [augment_of(recipe, config) for (recipe, _), config in zip(crops, configs)]
        return array_crops(data.to(device), plan, augments, seeds, start, stop)
    pictures = PictureCrops([PictureAugment(recipe, config) for (recipe, _), config in zip(crops, configs)])
    read = _from_files if isinstance(data, Files) else _from_stream
    return read(data, plan, pictures, device, start, stop, workers)  # type: ignore[arg-type]


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
    data: Files, plan: Plan, augment: PictureAugment, device: torch.device, start: int, stop: int, workers: int
) -> Iterator[tuple[Any, Tensor, tuple[str, ...]]]:
    loader = DataLoader(
        Seeded(data, augment, plan.seed), batch_sampler=Places(plan, start, stop), num_workers=workers,
        pin_memory=device.type == "cuda", prefetch_factor=4 if workers else None,
    )  # fmt: skip
    for images, labels, damaged in loader:
        names = tuple(name for lines in damaged for name in lines.split("\n") if name)
        yield _moved(images, device), labels.to(device, non_blocking=True), names


def _from_stream(
    data: Stream, plan: Plan, augment: PictureAugment, device: torch.device, start: int, stop: int, workers: int
) -> Iterator[tuple[Any, Tensor, tuple[str, ...]]]:
    """A stream cannot be entered in the middle: a resumed epoch is read from its beginning up to where it was."""
    data.dataset.transform = augment
    size = plan.batch_size // (plan.processes * plan.accumulate)
    first = start // plan.updates_per_epoch
    skip = (start - first * plan.updates_per_epoch) * plan.accumulate
    for epoch in range(first, -(-stop // plan.updates_per_epoch)):
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


def _with_views(
    batches: Iterator[tuple[list[Tensor], Tensor, tuple[str, ...]]], sizes: Sequence[Size]
) -> Iterator[Batch]:
    for (images, *views), labels, damaged in batches:
        yield Batch(images, labels, damaged, dict(zip(sizes, views, strict=True)))


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
