"""Batches of scenes, for training from any update on and for evaluation in order.

A picture is augmented from (seed, epoch, position) alone, as the loader of classified images does it: a run that was
stopped sees what one that was not sees.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .batches import Batch, Stretch, worker_count
from .dense import Scenes, Target
from .dense_augment import SceneView
from .kinds import UNREADABLE
from .reading import Places, Seeded


class SeededScenes(Seeded):
    """Scenes augmented from (seed, epoch, position) alone; unreadable ones replaced by the next."""

    def made(self, picture: Any, label: Target) -> tuple[Tensor, Target]:
        return self.augment(picture, label)


def training_scenes(data: Scenes, view: SceneView, stretch: Stretch) -> Iterator[Batch]:
    """Micro-batches of some updates: lists of images and of targets, on the device.

    Args:
        data: Where the pictures come from.
        view: How they are augmented.
        stretch: Which updates, and where their batches are wanted.
    """
    device, processes = stretch.device, worker_count(stretch.workers)
    loader = DataLoader(
        SeededScenes(data, view, stretch.plan.seed), batch_sampler=Places(stretch), num_workers=processes,
        collate_fn=list, prefetch_factor=2 if processes else None,
    )  # fmt: skip
    for rows in loader:
        names = tuple(name for _, _, lines in rows for name in lines.split("\n") if name)
        images = [image.to(device, non_blocking=True) for image, _, _ in rows]
        yield Batch(images, [moved(target, device) for _, target, _ in rows], names)


@dataclass
class Shown:
    """A picture in evaluation: as the model sees it, its target, its number; `problem` where it cannot be read."""

    image: Tensor
    target: Target
    index: int
    size: tuple[int, int]
    """Height and width of the picture itself."""
    problem: str = ""
    again: bool = False
    """Whether another process shows this one as well, so that it is not to be counted here."""


class _InOrder(Dataset):
    def __init__(self, data: Scenes, view: SceneView):
        self.data, self.view = data, view

    def __getitem__(self, position: int) -> Shown:
        index, again = position % len(self.data), position >= len(self.data)
        try:
            picture, target = self.data.picture(index)
        except UNREADABLE as error:
            problem = f"{self.data.filename(index)}: {error}"
            return Shown(torch.zeros(3, 64, 64), Target(), index, (64, 64), problem, again)
        image, target = self.view(picture, target)
        return Shown(image, target, index, (picture.height, picture.width), again=again)


def evaluation_scenes(
    data: Scenes,
    view: SceneView,
    device: torch.device,
    batch_size: int,
    workers: int | None,
    process: int = 0,
    processes: int = 1,
) -> Iterator[list[Shown]]:
    """All scenes in order, so many at a time, each process its share, as many for each.

    Args:
        data: The scenes.
        view: What the model sees of a picture.
        device: Where images are wanted.
        batch_size: Scenes at a time.
        workers: Processes that read files.
        process: The number of this process.
        processes: How many there are; each shows as many, some of them again where scenes do not divide.
    """
    mine = list(range(process, -(-len(data) // processes) * processes, processes))
    batches = [mine[first : first + batch_size] for first in range(0, len(mine), batch_size)]
    shown = _InOrder(data, view)
    for rows in DataLoader(shown, batch_sampler=batches, num_workers=worker_count(workers), collate_fn=list):
        yield [replace(row, image=row.image.to(device)) for row in rows]


def moved(target: Target, device: torch.device) -> Target:
    """A target on a device.

    Args:
        target: Anywhere.
        device: Where it is wanted.
    """
    fields = {key: value.to(device) for key, value in vars(target).items() if value is not None}
    return Target(**fields)
