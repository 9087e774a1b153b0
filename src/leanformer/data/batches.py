"""How a run cuts its data into batches, what a batch is, and how many processes read for it.

order of epoch e = permutation from (seed, e), each index repeated       update u of e takes its B rows from it
process p of P takes every P-th row, micro-batch m its part of those
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .draws import key_of
from .options import Augmentation
from .pictures import Size

MOST_WORKERS = 16
"""Processes that read images, by default, however many cores there are."""


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


@dataclass(frozen=True)
class Stretch:
    """Some updates of a run, and how their micro-batches are wanted.

    Attributes:
        plan: How the data are cut into batches.
        start: The first update.
        stop: The update after the last one.
        device: Where batches are wanted.
        workers: Processes that read files; None: as many as there are cores.
        quick: Compile what is done to images on the device: the hundred small steps of an augmentation become a few
            kernels. RandAugment's choices stay as they are.
        sizes: Further sizes (height, width) that the same views are wanted in.
        crops: Instead of one view of an image, these crops of it: how each is augmented, and its size.
    """

    plan: Plan
    start: int
    stop: int
    device: torch.device
    workers: int | None = None
    quick: bool = False
    sizes: Sequence[Size] = ()
    crops: Sequence[tuple[Augmentation, Size]] = ()


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
