"""Boxes, masks and label maps drawn over the picture, with torchvision's functions."""

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor
from torchvision.transforms.v2 import functional as F
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

from ..core import write_atomically
from ..data.dense import IGNORED

GAP, LARGEST = 8, 640
"""Pixels between two drawings, and of the longer side of a drawing."""
MASK, MAP = 0.45, 0.6
"""How strongly masks and label maps cover the picture."""
LETTERS = 13
"""Pixels of the letters of names."""


@dataclass(frozen=True)
class Drawing:
    """A picture and what it shows, in words."""

    picture: Image.Image
    words: str

    def save(self, path: Path) -> Path:
        """Write it as PNG with its words in the file, where the report finds them.

        Args:
            path: The file; folders above it are made.
        """
        about = PngInfo()
        about.add_itxt("Description", self.words)
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_atomically(path, lambda name: self.picture.save(name, format="PNG", pnginfo=about))


def colour_of(label: int) -> tuple[int, int, int]:
    """A colour for a class, the same everywhere; neighbouring numbers are far apart on the colour circle.

    >>> colour_of(0) != colour_of(1)
    True
    """
    red, green, blue = colorsys.hsv_to_rgb(label * 0.618034 % 1.0, 0.55 + 0.4 * (label % 2), 1.0 - 0.25 * (label % 3))
    return round(255 * red), round(255 * green), round(255 * blue)


def ink(colour: tuple[int, int, int]) -> str:
    """Black or white, whichever is read better on a colour.

    >>> ink((255, 220, 0)), ink((0, 0, 120))
    ('black', 'white')
    """
    red, green, blue = colour
    return "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 140 else "white"


def font() -> str:
    """The file of the letters, which comes with matplotlib."""
    from matplotlib.font_manager import findfont

    return findfont("DejaVu Sans")


def draw_objects(
    picture: Image.Image,
    boxes: Tensor,
    labels: Tensor,
    classes: Sequence[str] | None,
    scores: Tensor | None = None,
    masks: Tensor | None = None,
) -> Image.Image:
    """A picture with boxes, names and masks.

    Args:
        picture: The picture.
        boxes: Left, top, right, bottom in its pixels, (n, 4).
        labels: Classes from 0, (n,).
        classes: Their names.
        scores: Written behind the names, (n,).
        masks: Where each object is, (n, H, W).
    """
    shown, factor = _shown(picture)
    colours: list[Any] = [colour_of(int(label)) for label in labels]
    if masks is not None and len(masks):
        shown = draw_segmentation_masks(shown, _resized(masks, shown) > 0, alpha=MASK, colors=colours)
    names = [classes[int(label)] if classes else str(int(label)) for label in labels]
    if scores is not None:
        names = [f"{name} {score:.2f}" for name, score in zip(names, scores.tolist())]
    if len(boxes):
        shown = draw_bounding_boxes(
            shown, boxes * factor, labels=names, colors=colours, width=2, font=font(), font_size=LETTERS,
            label_colors=[ink(colour) for colour in colours], label_background_colors=colours, fill_labels=True,
        )  # fmt: skip
    return _picture(shown)


def draw_map(picture: Image.Image, label_map: Tensor, classes: Sequence[str] | None = None) -> Image.Image:
    """A picture under the colours of its label map; pixels without a class stay as they are.

    Args:
        picture: The picture.
        label_map: Classes (H, W).
        classes: Their names; those that occur are not written, but make the colours the same everywhere.
    """
    shown, _ = _shown(picture)
    small = _resized(label_map[None], shown)[0]
    present = [label for label in small.unique().tolist() if label != IGNORED]
    if not present:
        return _picture(shown)
    masks = torch.stack([small == label for label in present])
    colours: list[Any] = [colour_of(label) for label in present]
    return _picture(draw_segmentation_masks(shown, masks, alpha=MAP, colors=colours))


def side_by_side(drawings: Sequence[Image.Image], words: str) -> Drawing:
    """Drawings of one height beside each other.

    Args:
        drawings: The drawings.
        words: What they show.
    """
    width = sum(each.width for each in drawings) + GAP * (len(drawings) - 1)
    whole, left = Image.new("RGB", (width, drawings[0].height), "white"), 0
    for each in drawings:
        whole.paste(each, (left, 0))
        left += each.width + GAP
    return Drawing(whole, words)


def _shown(picture: Image.Image) -> tuple[Tensor, float]:
    """The picture as uint8 (3, H, W), its longer side at least half and at most LARGEST, and the factor to that."""
    longest = max(picture.size)
    factor = LARGEST / longest if longest > LARGEST else float(max(1, LARGEST // 2 // longest))
    size = [max(1, round(picture.height * factor)), max(1, round(picture.width * factor))]
    return F.resize(F.to_image(picture.convert("RGB")), size, antialias=True).as_subclass(Tensor), factor


def _resized(maps: Tensor, like: Tensor) -> Tensor:
    numbers = maps[:, None].to(torch.uint8)  # (n, 1, H, W)
    return torch.nn.functional.interpolate(numbers, like.shape[1:], mode="nearest-exact")[:, 0]


def _picture(pixels: Tensor) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
