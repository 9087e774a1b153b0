"""The crops of images that are kept as arrays: all crops of one kind in one go, on the device where the images lie.

    G crops of B images are one batch of G B images, whose draws come from G keys     crop g of image b  ←  (key_g, b)

A kind is a size and the augmentation that leads to it, so that DINO has two: global crops and local ones. The draws are
those that each crop would have by itself. RandAugment works on one crop at a time, as anywhere else.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from ...data.batches import Batch, Stretch
from ...data.draws import key_of
from ...data.kinds import Arrays
from ...data.loader import augment_of
from ...train.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreTraining(Task):
    """Classification but for how crops are made; a run folder does not know the difference.

    >>> PreTraining() == Task()
    True
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self.to_json() == other.to_json()

    def batches(self, data: Any, recipe: Any, config: dict[str, Any], stretch: Stretch) -> Iterator[Batch]:
        """The micro-batches of some updates, their crops made kind by kind where the images are arrays.

        Args:
            data: What is learnt from.
            recipe: How images are augmented, unless the stretch asks for crops.
            config: What `core.input_of` gives of the model.
            stretch: Which updates, and which crops of each image.
        """
        if isinstance(data, Arrays) and stretch.crops and recipe.auto_augment is None:
            return crops_of_arrays(data, config, stretch)
        return super().batches(data, recipe, config, stretch)


def crops_of_arrays(data: Arrays, config: dict[str, Any], stretch: Stretch) -> Iterator[Batch]:
    """Batches of several crops an image; with `stretch.quick` by compiled code, in half precision.

    Args:
        data: The images.
        config: What `core.input_of` gives of the model; the size is each crop's own.
        stretch: Which updates, and which crops.
    """
    plan, known = stretch.plan, -1
    data, kinds = data.to(stretch.device), _kinds(config, stretch)
    order, keys = torch.empty(0), torch.empty(0)
    for update in range(stretch.start, stretch.stop):
        epoch = update // plan.updates_per_epoch
        if epoch != known:
            known, order = epoch, plan.order(epoch).to(stretch.device)  # (n,)
            keys = _keys(plan.seed, epoch, len(stretch.crops)).to(stretch.device)  # (V,)
        for rows in plan.rows(update):
            positions = torch.arange(rows.start, rows.stop, rows.step, device=stretch.device)  # (B,)
            indices = order[positions]
            pixels, size, crops, first = data.images[indices], len(rows), [], 0
            for augment, count in kinds:
                mine = keys[first : first + count].repeat_interleave(size, output_size=count * size)[
                    :, None
                ]  # (G B, 1)
                made = augment(pixels.repeat(count, 1, 1, 1), positions.repeat(count), mine)  # (G B, C, S, S)
                crops += made.split(size)
                first += count
            yield Batch(crops[0], data.labels[indices], crops=tuple(crops))


def _kinds(config: dict[str, Any], stretch: Stretch) -> list[tuple[Any, int]]:
    """How crops of each kind are made, and how many of them there are."""
    found = []
    for (recipe, size), same in itertools.groupby(stretch.crops):
        augment = augment_of(recipe, {**config, "input_size": (config["input_size"][0], *size)}, half=stretch.quick)
        made = torch.compile(augment.__call__, dynamic=False) if stretch.quick else augment
        found.append((made, len(list(same))))
    return found


def _keys(seed: int, epoch: int, count: int) -> torch.Tensor:
    """The keys of the crops in an epoch, (V,)."""
    seeds = [seed, *(key_of(seed, "crop", index) for index in range(1, count))]
    return torch.tensor([key_of(each, "augment", epoch) for each in seeds])
