"""Training images with places instead of labels: which image it is and what was cut out of it, so that maps follow.

    target = label, index, top, left, height, width, flip          the crop in shares of the picture's sides

`label_maps` reads such places. B batch, H x W pixels.
"""

import random
from typing import Any, TypeGuard

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import functional as pixels

from .draws import key_of, seed_all
from .label_maps import Pictures
from .pictures import PictureAugment
from .reading import Seeded
from .sources import Stream, open_data

EXACT = 2**24
"""Up to here, float32 counts images exactly."""
MOVING = ("Crop", "Resize", "Flip", "Pad", "Rotation", "Affine", "Perspective")
KNOWN = ("RandomResizedCrop", "RandomHorizontalFlip")


class TokenLabelled(Dataset):
    """Training images with their places instead of labels, for `TokenLabels(labels=...)`.

    `transform` is a pipeline of timm or torchvision for training; its random crop and flip are done here, so that
    they are known, and the rest of it as it is (RandAugment's small shifts and turns leave the labels where they
    were, as in the published recipe). Order and augmentation follow from (seed, epoch, position).

    >>> images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    >>> TokenLabelled(open_data((images, torch.arange(4))))[0][1].shape
    torch.Size([7])
    """

    def __init__(self, data: Any, transform: Any = None, seed: int = 0):
        if len(data) > EXACT:
            raise ValueError(f"{len(data)} images are more than the {EXACT} that a place can number")
        self.pictures, self.seed = Pictures(data), seed
        self.transform = transform
        self.set_epoch(0)

    @property
    def transform(self) -> Any:
        return self._transform

    @transform.setter
    def transform(self, transform: Any) -> None:
        for step in (step for each in _pipelines(transform) for step in _steps(each)):
            name = type(step).__name__
            if any(word in name for word in MOVING) and not name.startswith(KNOWN):
                raise ValueError(f"{name} moves the image by an amount that label maps cannot follow; leave it out")
        self._transform = transform

    def __len__(self) -> int:
        return len(self.pictures)

    def set_epoch(self, epoch: int) -> None:
        """Another order and other crops for another epoch."""
        generator = torch.Generator().manual_seed(key_of(self.seed, "order", epoch) % 2**63)
        self.epoch, self.order = epoch, torch.randperm(len(self), generator=generator)
        here = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.process = torch.distributed.get_rank() if here else 0
        self.processes = torch.distributed.get_world_size() if here else 1

    def __getitem__(self, position: int) -> tuple[Any, Tensor]:
        position = (position * self.processes + self.process) % len(self)
        picture, numbers = self.picture(int(self.order[position]))
        seed_all(self.seed, "image", self.epoch, position)
        return self.placed(picture, numbers)

    def picture(self, index: int) -> tuple[Image.Image, tuple[int, int]]:
        """An image as a picture, its label and its index."""
        picture, label = self.pictures[index]
        return picture, (label, index)

    def filename(self, index: int) -> str:
        """A name of the image for reports."""
        return self.pictures.filename(index)

    def placed(self, picture: Image.Image, numbers: tuple[int, int]) -> tuple[Any, Tensor]:
        """A picture augmented, (3, H, W) or several sizes of it, and its place (7,).

        Args:
            picture: The picture.
            numbers: Its label and its index.
        """
        places: list[list[float]] = []  # the same for every size

        def cut(steps: Any) -> Tensor:
            image, place = _cut(picture, steps)
            places.append(place)
            return image

        transform = self.transform
        image = transform.views(cut, picture) if isinstance(transform, PictureAugment) else cut(transform)
        return image, torch.tensor([*numbers, *places[0]], dtype=torch.float32)


class SeededPlaces(Seeded):
    """Images with their places, augmented from (seed, epoch, position) alone; unreadable ones replaced."""

    def made(self, picture: Any, label: tuple[int, int]) -> tuple[Any, Tensor]:
        return self.data.placed(picture, label)


def _cut(picture: Any, transform: Any) -> tuple[Tensor, list[float]]:
    """A picture through the steps of a transform, and what was cut out of it: top, left, height, width, flip."""
    width, height = picture.size
    box, flip = (0, 0, height, width), False
    for step in _steps(transform):
        if type(step).__name__.startswith("RandomResizedCrop"):
            box = step.get_params(picture, list(step.scale), list(step.ratio))
            picture = _resized_crop(picture, box, step)
        elif type(step).__name__ == "RandomHorizontalFlip":
            flip = float(torch.rand(())) < step.p
            picture = pixels.hflip(picture) if flip else picture
        else:
            picture = step(picture)
    top, left, tall, wide = box
    image = picture if isinstance(picture, Tensor) else pixels.to_tensor(picture)
    return image, [top / height, left / width, tall / height, wide / width, float(flip)]


def with_places(source: Any, seed: int = 0) -> Stream:
    """The training images that `source` names, with places instead of labels, as data for `fit`.

    >>> len(with_places((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4))))
    4
    """
    data = open_data(source, "train", seed)
    if has_places(data):
        return data
    if isinstance(data, Stream):
        raise ValueError(f"{data.name} comes in an order of its own, so label maps cannot be found by number")
    return Stream(TokenLabelled(data, seed=seed), data.classes, f"{data.name} with places", data.damage)


def has_places(data: Any) -> TypeGuard[Stream]:
    """Whether a data set tells places instead of labels.

    >>> has_places(open_data((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4))))
    False
    """
    return isinstance(data, Stream) and isinstance(data.dataset, TokenLabelled)


def without_places(data: Any) -> Any:
    """The data set that one with places was made from; any other one as it is.

    >>> pixels = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    >>> without_places(with_places((pixels, torch.arange(4)))).images is pixels
    True
    """
    return data.dataset.pictures.data if has_places(data) else data


def _pipelines(transform: Any) -> list[Any]:
    return transform.pipelines if isinstance(transform, PictureAugment) else [transform]


def _steps(transform: Any) -> list[Any]:
    return list(getattr(transform, "transforms", [transform])) if transform is not None else []


def _resized_crop(picture: Image.Image, box: tuple[int, int, int, int], step: Any) -> Image.Image:
    modes = step.interpolation
    mode = random.choice(modes) if isinstance(modes, tuple | list) else modes
    return pixels.resized_crop(picture, *box, list(step.size), mode)  # type: ignore[arg-type]
