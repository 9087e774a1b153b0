"""A recipe's augmentation of pictures by timm's transforms, at one size or at several with the same draws.

    draws → crop box, flip, operations or colours, the same at every size → erasing, one box scaled to every size

Every size runs the whole chain on the original pixels, from the same state of the generators. That gives the same
view because none of these draws depends on the size: a crop is drawn in pixels of the source, a move in shares of the
image. So a teacher sees what a student of its size would see, and the student what it sees without a teacher; to
augment once at the largest size and shrink that would change the student's image and resample it twice. Erasing alone
draws its box in pixels of its own image: it is drawn for the first size and scaled to the others.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from PIL import Image
from timm.data import create_transform
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor

from .draws import host_state, set_host_state
from .options import Augmentation

Size = tuple[int, int]
Box = tuple[float, float, float, float]


class AugmentationError(RuntimeError):
    """An augmentation failed on a picture that was read well: an error of this library, not of the data."""


class PictureAugment:
    """Pictures as tensors for training: one (C, H, W), or with further sizes a tuple of them, the same view of each.

    Args:
        recipe: How images are cropped, coloured and erased.
        config: What `core.input_of(model)` gives of the model that is trained.
        sizes: Further sizes (height, width) that the same view is wanted in.

    >>> import leanformer as lf
    >>> config = {"input_size": (3, 16, 16), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    >>> small, large = PictureAugment(lf.train.Recipe(), config, [(32, 32)])(Image.new("RGB", (40, 30)))
    >>> small.shape, large.shape
    (torch.Size([3, 16, 16]), torch.Size([3, 32, 32]))
    """

    def __init__(self, recipe: Augmentation, config: dict[str, Any], sizes: Sequence[Size] = ()):
        channels, *own = config["input_size"]
        self.pipelines = [
            pipeline(recipe, {**config, "input_size": (channels, *size)}) for size in (tuple(own), *sizes)
        ]
        self.erasing = RandomErasing(recipe.erasing, mode="pixel", device="cpu") if recipe.erasing else None

    def __call__(self, picture: Image.Image) -> Any:
        return self.views(lambda steps: steps(picture), picture)

    def views(self, make: Callable[[Any], Tensor], picture: Image.Image) -> Any:
        """What `make` makes of the picture by each size's steps, all with the same draws, erased.

        Args:
            make: Runs the steps of one size.
            picture: The picture, for the error's text.
        """
        try:
            images = [make(steps) for steps in self._replayed()]
            images = images if self.erasing is None else self._erased(images)
        except Exception as error:  # whatever it is, the picture was whole
            raise AugmentationError(
                f"augmenting a picture of {picture.width} x {picture.height} pixels failed, which is an error of "
                f"leanformer and not of the picture: {type(error).__name__}: {error}"
            ) from error
        return images[0] if len(images) == 1 else tuple(images)

    def _replayed(self) -> Iterator[Any]:
        """The steps of each size; the generators start alike for each and end as the first size leaves them."""
        first, *more = self.pipelines
        if not more:
            yield first
            return
        before = host_state()
        yield first
        after = host_state()
        for steps in more:
            set_host_state(before)
            yield steps
        set_host_state(after)

    def _erased(self, images: list[Tensor]) -> list[Tensor]:
        assert self.erasing is not None
        first, *more = images
        if not more:
            return [self.erasing(first)]
        before = first.clone()
        first = self.erasing(first)
        box, after = changed(before, first), host_state()
        if box is not None:
            for image in more:
                fill(image, box)
            set_host_state(after)
        return [first, *more]


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


def pipeline(recipe: Augmentation, config: dict[str, Any]) -> Any:
    """timm's training transform for a recipe, up to normalisation, made safe for every picture and every draw.

    Args:
        recipe: How images are cropped and coloured.
        config: Input size and normalisation.
    """
    transform: Any = create_transform(
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
        normalize=True,
    )
    for step in transform.transforms:
        if isinstance(step, RandomResizedCropAndInterpolation):
            step.get_params = whole_pixels
        for operation in _operations(step):
            if operation.name.startswith("Posterize"):
                operation.level_fn = functools.partial(one_bit_or_more, operation.level_fn)
    return transform


def _operations(step: Any) -> list[Any]:
    """The operations of RandAugment, AugMix (`ops`) or AutoAugment (`policy`)."""
    return [*getattr(step, "ops", ()), *(each for pair in getattr(step, "policy", ()) for each in pair)]


def one_bit_or_more(bits_of: Callable[[float, Any], tuple[int]], level: float, hparams: Any) -> tuple[int]:
    """Bits that posterizing keeps at a level; timm asks for none at the highest, which Pillow refuses.

    >>> one_bit_or_more(lambda level, hparams: (4 - int(level * 0.4),), 10.0, {})
    (1,)
    """
    return (max(1, *bits_of(level, hparams)),)


def whole_pixels(img: Any, scale: Sequence[float], ratio: Sequence[float]) -> tuple[int, int, int, int]:
    """timm's random crop (top, left, height, width), of one pixel at least: of a line it would cut out nothing."""
    top, left, height, width = RandomResizedCropAndInterpolation.get_params(img, scale, ratio)
    return min(top, img.height - 1), min(left, img.width - 1), max(1, height), max(1, width)


def changed(before: Tensor, after: Tensor) -> Box | None:
    """The box (top, left, bottom, right) in shares of the sides outside of which two images are equal; None if all is.

    >>> import torch
    >>> image = torch.zeros(3, 4, 4)
    >>> changed(image, torch.nn.functional.pad(torch.ones(3, 2, 2), (0, 2, 1, 1)))
    (0.25, 0.0, 0.75, 0.5)
    """
    there = (before != after).any(0)  # (H, W)
    rows, columns = there.any(1).nonzero(), there.any(0).nonzero()
    if not len(rows):
        return None
    height, width = there.shape
    return (
        rows[0].item() / height, columns[0].item() / width, (rows[-1].item() + 1) / height,
        (columns[-1].item() + 1) / width,
    )  # fmt: skip


def fill(image: Tensor, box: Box) -> None:
    """Fill a box, given in shares of the sides, with noise, in place: (C, H, W)."""
    height, width = image.shape[1:]
    top, left, bottom, right = (round(share * side) for share, side in zip(box, (height, width, height, width)))
    image[:, top:bottom, left:right].normal_()
