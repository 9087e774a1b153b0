"""Batches for training, each a pure function of (seed, update): a run can start anywhere and sees the same images.

Models of other input sizes (teachers) get the same view of each image, made at their size from the original pixels.
Nothing here keeps a state that would have to be saved.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .augment import Augment
from .batches import Batch, Plan, worker_count
from .crops import PictureCrops, array_crops
from .draws import key_of
from .options import Augmentation
from .pictures import PictureAugment, Size
from .reading import Read, from_files, from_stream
from .sources import Arrays, Data, Files


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
    read = from_files if isinstance(data, Files) else from_stream
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
) -> Iterator[Read]:
    """Batches of several crops an image, each crop with draws of its own."""
    channels = config["input_size"][0]
    configs = [{**config, "input_size": (channels, *size)} for _, size in crops]
    if isinstance(data, Arrays):
        seeds = [plan.seed, *(key_of(plan.seed, "crop", index) for index in range(1, len(crops)))]
        augments = [augment_of(recipe, config) for (recipe, _), config in zip(crops, configs)]
        return array_crops(data.to(device), plan, augments, seeds, start, stop)
    pictures = PictureCrops([PictureAugment(recipe, config) for (recipe, _), config in zip(crops, configs)])
    read = from_files if isinstance(data, Files) else from_stream
    return read(data, plan, pictures, device, start, stop, workers)  # type: ignore[arg-type]


def _with_views(batches: Iterator[Read], sizes: Sequence[Size]) -> Iterator[Batch]:
    for (images, *views), labels, damaged in batches:
        yield Batch(images, labels, damaged, dict(zip(sizes, views, strict=True)))
