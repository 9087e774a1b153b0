"""Several crops of every image, each with draws of its own: what self-supervision compares with each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from .augment import Augment
from .draws import key_of
from .kinds import Arrays
from .pictures import PictureAugment

if TYPE_CHECKING:
    from .batches import Plan


class PictureCrops:
    """Several crops of a picture as tensors, each drawn anew and of its own size.

    Args:
        augments: How each crop is made.

    >>> import leanformer as lf
    >>> config = {"input_size": (3, 16, 16), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    >>> len(PictureCrops([PictureAugment(lf.train.Recipe(), config)] * 3)(Image.new("RGB", (40, 30))))
    3
    """

    def __init__(self, augments: Sequence[PictureAugment]):
        self.augments = list(augments)

    def __call__(self, picture: Image.Image) -> tuple[Tensor, ...]:
        return tuple(augment(picture) for augment in self.augments)


def array_crops(
    data: Arrays, plan: Plan, augments: list[Augment], seeds: list[int], start: int, stop: int
) -> Iterator[tuple[list[Tensor], Tensor, tuple[str, ...]]]:
    """Batches of crops made on the device from arrays, with their labels and no damaged images.

    Args:
        data: The images, where batches are wanted.
        plan: How they are cut into batches.
        augments: How each crop is made.
        seeds: Of each crop.
        start: The first update.
        stop: The update after the last one.
    """
    for update in range(start, stop):
        epoch = update // plan.updates_per_epoch
        order = plan.order(epoch).to(data.images.device)  # (n,)
        keys = [key_of(seed, "augment", epoch) for seed in seeds]
        for rows in plan.rows(update):
            positions = torch.arange(rows.start, rows.stop, rows.step, device=order.device)  # (b,)
            indices = order[positions]
            pixels = data.images[indices]
            images = [augment(pixels, positions, key) for augment, key in zip(augments, keys)]
            yield images, data.labels[indices], ()
