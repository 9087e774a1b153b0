"""How a model sees pictures: the middle at one size, as classifiers do, or whole, as detectors and segmenters do.

file → view → groups of one size → device → together → what the task computes with
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..data.view import EvaluationView

LONGEST = 2048
"""Pixels of the longer side of a picture as a segmenter sees it; a larger one is shown smaller."""
MOST_PIXELS = 50_000_000
"""Of a picture when it is resized: a line one pixel high would grow without bound."""
Groups = Sequence[tuple[Tensor, Tensor]]
"""(positions in the batch (g,), images): pixels uint8 (g, C, h, w), or what the model sees already, float."""


class View(Protocol):
    """From pictures to what a task computes with."""

    channels: int

    def __call__(self, images: Any) -> Tensor:
        """One picture → its pixels, or images uint8 (B, C, h, w) → what the model sees of them, on their device."""
        ...

    def check(self, width: int, height: int) -> None:
        """Refuse a picture of this size, before it is decoded, if it would be too large."""
        ...

    def together(self, groups: Groups, size: int, device: torch.device) -> Any:
        """A batch of `size` places, filled by groups on the device; places without a picture are empty."""
        ...


class MiddleView(EvaluationView):
    """Pictures as a classifier sees them in evaluation; a batch is one tensor, black where there is no picture."""

    def check(self, width: int, height: int) -> None:
        _, _, tall, wide = self.box(height, width)
        if width * height * (self.size[0] / tall) * (self.size[1] / wide) > MOST_PIXELS:
            raise ValueError(f"a picture of {width} x {height} pixels is too narrow")

    def together(self, groups: Groups, size: int, device: torch.device) -> Tensor:
        images = torch.zeros(size, self.channels, *self.size, device=device)  # (B, C, H, W)
        for at, group in groups:
            images[at] = self(group) if group.dtype == torch.uint8 else group
        return images


class WholeView:
    """Pictures at their own size; a batch is a list of pixels uint8 (C, h, w), None where there is no picture.

    Args:
        channels: Of the pixels.
        longest: Pixels of the longer side to which the model resizes larger pictures.

    >>> view = WholeView(3)
    >>> view(Image.new("RGB", (60, 40))).shape
    torch.Size([3, 40, 60])
    """

    def __init__(self, channels: int, longest: int = LONGEST):
        self.channels, self.longest = channels, longest

    def __call__(self, images: Image.Image | Tensor) -> Tensor:
        return pixels_of(images, self.channels) if isinstance(images, Image.Image) else images

    def check(self, width: int, height: int) -> None:
        if width * height > MOST_PIXELS:
            raise ValueError(f"a picture of {width} x {height} pixels is too large; up to {MOST_PIXELS} are taken")
        if min(width, height) * self.longest < max(width, height):  # nothing is left of its short side
            raise ValueError(f"a picture of {width} x {height} pixels is too narrow")

    def together(self, groups: Groups, size: int, device: torch.device) -> list[Tensor | None]:
        images: list[Tensor | None] = [None] * size
        for at, group in groups:
            for position, image in zip(at.tolist(), group):
                images[position] = image
        return images


def pixels_of(picture: Image.Image, channels: int) -> Tensor:
    """The pixels of a picture, uint8 (C, h, w).

    Args:
        picture: Of any mode.
        channels: 3 for colours, 1 for grey.
    """
    pixels = np.asarray(picture.convert("RGB" if channels == 3 else "L"))  # (h, w, 3) or (h, w)
    return torch.tensor(pixels).reshape(*pixels.shape[:2], -1).permute(2, 0, 1).contiguous()
