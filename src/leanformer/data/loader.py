"""Batches for training, each a pure function of (seed, update): a run can start anywhere and sees the same images.

Models of other input sizes (teachers) get the same view of each image, made at their size from the original pixels.
Nothing here keeps a state that would have to be saved.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .augment import Augment
from .batches import Batch, Stretch
from .draws import key_of
from .options import Augmentation
from .pictures import PictureAugment, PictureCrops
from .places import SeededPlaces, has_places
from .reading import Read, Seeded, from_files, from_stream
from .sources import Arrays, Data, Files, Stream


def training_batches(data: Data, recipe: Augmentation, config: dict[str, Any], stretch: Stretch) -> Iterator[Batch]:
    """The micro-batches of some updates, in order.

    Args:
        data: Where the images come from.
        recipe: How they are augmented.
        config: What `core.input_of` gives of the model that is trained.
        stretch: Which updates, and how their batches are wanted.
    """
    if stretch.crops:
        made = _crops(data, config, stretch)
        return (Batch(images[0], labels, damaged, crops=tuple(images)) for images, labels, damaged in made)
    if isinstance(data, Arrays):
        augment = augment_of(recipe, config, half=stretch.quick and recipe.auto_augment is None)
        return _from_arrays(data, [augment, *(replace(augment, size=size) for size in stretch.sizes)], stretch)
    batches = _read(data, PictureAugment(recipe, config, stretch.sizes), stretch)
    return (
        Batch(images, labels, damaged, dict(zip(stretch.sizes, views, strict=True)))
        for (images, *views), labels, damaged in batches
    )


def augment_of(recipe: Augmentation, config: dict[str, Any], half: bool = False) -> Augment:
    """The recipe's augmentation for a model's input size and normalisation."""
    return Augment(recipe, tuple(config["input_size"][1:]), tuple(config["mean"]), tuple(config["std"]), half)


def _read(data: Files | Stream, augment: Any, stretch: Stretch) -> Iterator[Read]:
    if has_places(data):
        data.dataset.transform = augment
        return from_files(SeededPlaces(data.dataset, augment, stretch.plan.seed), stretch)
    if isinstance(data, Stream):
        return from_stream(data, augment, stretch)
    return from_files(Seeded(data, augment, stretch.plan.seed), stretch)


def _rows(data: Arrays, stretch: Stretch) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Epoch, positions in its order, pixels and labels of each micro-batch, on the device."""
    data, plan, known, order = data.to(stretch.device), stretch.plan, -1, torch.empty(0)
    for update in range(stretch.start, stretch.stop):
        epoch = update // plan.updates_per_epoch
        if epoch != known:
            known, order = epoch, plan.order(epoch).to(stretch.device)  # (n,)
        for rows in plan.rows(update):
            positions = torch.arange(rows.start, rows.stop, rows.step, device=order.device)  # (b,)
            indices = order[positions]
            yield epoch, positions, data.images[indices], data.labels[indices]


def _from_arrays(data: Arrays, augments: list[Augment], stretch: Stretch) -> Iterator[Batch]:
    """Batches augmented on the device; every size from the same pixels and the same draws."""
    half = augments[0].half
    first, *more = [torch.compile(each.__call__, dynamic=False) if half else each for each in augments]
    known, key = -1, 0
    for epoch, positions, pixels, labels in _rows(data, stretch):
        if epoch != known:
            known, key = epoch, key_of(stretch.plan.seed, "augment", epoch)
            if half:
                key = torch.tensor(key, device=positions.device)  # as a number it would be compiled in
        images = first(pixels, positions, key)  # before the views, so that it does not depend on them
        views = {size: view(pixels, positions, key) for size, view in zip(stretch.sizes, more)}
        yield Batch(images, labels, views=views)


def _crops(data: Data, config: dict[str, Any], stretch: Stretch) -> Iterator[Read]:
    """Batches of several crops an image, each crop with draws of its own."""
    channels, seed = config["input_size"][0], stretch.plan.seed
    made = [(recipe, {**config, "input_size": (channels, *size)}) for recipe, size in stretch.crops]
    if not isinstance(data, Arrays):
        yield from _read(data, PictureCrops([PictureAugment(*each) for each in made]), stretch)
        return
    augments = [augment_of(*each) for each in made]
    seeds = [seed, *(key_of(seed, "crop", index) for index in range(1, len(made)))]
    for epoch, positions, pixels, labels in _rows(data, stretch):
        keys = [key_of(each, "augment", epoch) for each in seeds]
        yield [augment(pixels, positions, key) for augment, key in zip(augments, keys)], labels, ()
