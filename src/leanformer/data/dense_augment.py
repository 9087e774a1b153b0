"""A recipe's augmentation of scenes by torchvision's transforms, under which boxes and masks move with the picture.

    crop (crop_scale, crop_ratio)  →  resize, where one size is wanted  →  flip  →  colours (color_jitter)  →  0 … 1

Boxes are cut at the edges of the crop, and those of which nothing is left are dropped. All draws come from torch's
generator, which the loader seeds by epoch and position.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from .dense import Target
from .options import Augmentation
from .pictures import AugmentationError

Size = tuple[int, int]
Sample = dict[str, Any]


class SceneView(Protocol):
    """Makes what a model sees of a picture and its target."""

    def __call__(self, picture: Image.Image, target: Target) -> tuple[Tensor, Target]: ...


class RandomCrop(v2.Transform):
    """Cut out a random part, as `RandomResizedCrop` does, without resizing it.

    Args:
        scale: The smallest and the largest share of the area.
        ratio: The smallest and the largest ratio of width to height, in those of the picture.
    """

    def __init__(self, scale: tuple[float, float], ratio: tuple[float, float]):
        super().__init__()
        self.scale, self.ratio = scale, ratio

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = v2.query_size(flat_inputs)
        ratio = tuple(each * width / height for each in self.ratio)
        drawn = v2.RandomResizedCrop((1, 1), self.scale, ratio).make_params(flat_inputs)  # type: ignore[arg-type]
        return {key: drawn[key] for key in ("top", "left", "height", "width")}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return self._call_kernel(F.crop, inpt, **params)


class Resize(v2.Transform):
    """Resize pictures and label maps so that both lie at the same places.

    Of a label map each pixel is the one in whose middle its own lies; torchvision's takes the one at its upper left
    corner, by which maps that become smaller move up to half a pixel against their pictures.

    Args:
        size: Height and width.
    """

    def __init__(self, size: Size):
        super().__init__()
        self.size = list(size)

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if not isinstance(inpt, tv_tensors.Mask):
            return self._call_kernel(F.resize, inpt, self.size, antialias=True)
        exact = v2.InterpolationMode.NEAREST_EXACT
        found = F.resize_image(inpt.as_subclass(Tensor)[None], self.size, exact)[0]  # (H, W)
        return tv_tensors.Mask(found)


@dataclass(frozen=True)
class SceneAugment:
    """Pictures and targets for training.

    Args:
        recipe: How pictures are cropped, flipped and coloured.
        size: Resize what was cut out to this height and width; None leaves the size as it is.
        mean: Normalise by this mean and `std`; None leaves pixels between 0 and 1.
        std: The deviation that belongs to `mean`.

    >>> import leanformer as lf
    >>> augment = SceneAugment(lf.train.plain(flip=1.0))
    >>> target = Target(torch.tensor([[0.0, 0.0, 2.0, 4.0]]), torch.tensor([0]))
    >>> augment(Image.new("RGB", (8, 8)), target)[1].boxes
    tensor([[6., 0., 8., 4.]])
    """

    recipe: Augmentation
    size: Size | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __call__(self, picture: Image.Image, target: Target) -> tuple[Tensor, Target]:
        try:
            sample = as_sample(picture, target.without_crowds())
            for step in self._steps():
                sample = step(sample)
            return sample["image"].as_subclass(Tensor), as_target(sample)
        except Exception as error:  # whatever it is, the picture was whole
            raise AugmentationError(
                f"augmenting a picture of {picture.width} x {picture.height} pixels with its target failed, which is "
                f"an error of leanformer and not of the picture: {type(error).__name__}: {error}"
            ) from error

    def _steps(self) -> list[Any]:
        recipe, steps = self.recipe, []
        if recipe.crop_scale != (1.0, 1.0) or recipe.crop_ratio != (1.0, 1.0):
            steps.append(RandomCrop(recipe.crop_scale, recipe.crop_ratio))
        if self.size is not None:
            steps.append(Resize(self.size))
        if recipe.flip:
            steps.append(v2.RandomHorizontalFlip(recipe.flip))
        if recipe.color_jitter:
            steps.append(v2.ColorJitter(*(recipe.color_jitter,) * 3))
        return [*steps, *finish(self.mean, self.std)]


def finish(mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> list[Any]:
    """The last steps: pixels between 0 and 1, normalised where that is asked for, boxes within the picture."""
    steps: list[Any] = [v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)]
    if mean is not None and std is not None:
        steps.append(v2.Normalize(mean, std))
    return [*steps, _drop_empty]


def as_sample(picture: Image.Image, target: Target) -> Sample:
    """Picture and target as torchvision's transforms take them; of a target with a label map only that."""
    sample: Sample = {"image": F.to_image(picture)}
    if target.label_map is not None:
        return sample | {"label_map": tv_tensors.Mask(target.label_map)}
    sample["boxes"] = tv_tensors.BoundingBoxes(
        target.boxes,
        format="XYXY",
        canvas_size=(picture.height, picture.width),  # type: ignore[call-overload]
    )
    sample["labels"] = target.labels
    return sample if target.masks is None else sample | {"masks": tv_tensors.Mask(target.masks)}


def as_target(sample: Sample) -> Target:
    """The target in what the transforms made."""
    plain = {key: sample[key].as_subclass(Tensor) for key in ("boxes", "masks", "label_map") if key in sample}
    if "label_map" in plain:
        return Target(label_map=plain["label_map"])
    return Target(plain["boxes"], sample["labels"], plain.get("masks"))


def _drop_empty(sample: Sample) -> Sample:
    """Without the boxes that were cut off, and their masks."""
    return sample if "label_map" in sample else v2.SanitizeBoundingBoxes(min_size=1.0)(sample)


@dataclass(frozen=True)
class SceneEvaluation:
    """Pictures for evaluation; their targets stay as they are, to be compared at the picture's own size.

    Args:
        size: Resize pictures to this height and width; None leaves them as they are.
        mean: Normalise by this mean and `std`; None leaves pixels between 0 and 1.
        std: The deviation that belongs to `mean`.

    >>> SceneEvaluation()(Image.new("RGB", (8, 6)), Target())[0].shape
    torch.Size([3, 6, 8])
    """

    size: Size | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __call__(self, picture: Image.Image, target: Target) -> tuple[Tensor, Target]:
        sample: Any = {"image": F.to_image(picture)}
        steps = [v2.Resize(self.size, antialias=True)] if self.size is not None else []
        for step in [*steps, *finish(self.mean, self.std)[:-1]]:
            sample = step(sample)
        return sample["image"].as_subclass(Tensor), target
