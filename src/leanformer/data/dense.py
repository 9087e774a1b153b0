"""Pictures with boxes, masks or a label map: what detectors and segmenters learn from and are judged by.

    scene = picture + target        boxes (n, 4): left, top, right, bottom in pixels       labels (n,): classes from 0
                                    masks (n, H, W)       crowd (n,): regions that nothing is learnt from
                                    label_map (H, W): a class for every pixel, IGNORED where there is none

What an annotation file says wrong (boxes without area, classes that nobody named) is left out, counted and told; a
picture that cannot be read, or whose label map has another size, counts as damaged.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .kinds import Damage

IGNORED = 255
"""The value of pixels in a label map that are neither learnt nor counted."""
LEAST_SIDE = 1e-3
"""Pixels: a box with a shorter side, after it was cut at the edges of its picture, is broken."""


@dataclass(frozen=True)
class Target:
    """What is to be found in a picture.

    >>> Target(torch.tensor([[0.0, 0.0, 4.0, 4.0]]), torch.tensor([2])).crowd
    tensor([False])
    """

    boxes: Tensor = field(default_factory=lambda: torch.zeros(0, 4))
    labels: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    masks: Tensor | None = None
    label_map: Tensor | None = None
    crowd: Tensor = None  # type: ignore[assignment]
    areas: Tensor | None = None
    """Pixels of each object as the annotation tells them, by which objects are called small or large; (n,)"""

    def __post_init__(self) -> None:
        if self.crowd is None:
            object.__setattr__(self, "crowd", torch.zeros(len(self.labels), dtype=torch.bool))

    def without_crowds(self) -> "Target":
        """The objects that can be learnt: no groups that are marked as one."""
        kept = ~self.crowd
        masks = None if self.masks is None else self.masks[kept]
        return Target(self.boxes[kept], self.labels[kept], masks, self.label_map)


@dataclass(frozen=True)
class BoxesAlone:
    """Reads scenes without their masks."""

    read: Callable[[Any], tuple[Image.Image, Target]]

    def __call__(self, entry: Any) -> tuple[Image.Image, Target]:
        picture, target = self.read(entry)
        return picture, replace(target, masks=None)


@dataclass
class Scenes:
    """Pictures read one by one with their targets.

    Args:
        entries: One for each picture, whatever the reader understands.
        read: Makes picture and target of an entry; raises what Pillow raises, or `ValueError`, where it cannot.
        classes: Names of the classes, in the order of the labels.
        name: For messages.
        has: What targets hold: boxes, masks, label_map.
        left_out: What was left out of the annotations or is worth knowing of them, and how often.
    """

    entries: Sequence[Any]
    read: Callable[[Any], tuple[Image.Image, Target]]
    classes: tuple[str, ...]
    name: str
    has: frozenset[str]
    left_out: Counter[str] = field(default_factory=Counter)
    damage: Damage = field(default_factory=Damage)
    labelled: bool = True

    def __post_init__(self) -> None:
        if not len(self.entries):
            raise ValueError(f"{self.name} holds no pictures")
        self.damage.total = len(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def picture(self, index: int) -> tuple[Image.Image, Target]:
        """A picture as RGB and its target; a label map of another size is refused.

        Where targets have masks, that of a picture without objects has none of them: (0, H, W).
        """
        picture, target = self.read(self.entries[index])
        picture = picture.convert("RGB")
        if "masks" in self.has and target.masks is None and not len(target.labels):
            target = replace(target, masks=torch.zeros(0, picture.height, picture.width, dtype=torch.bool))
        for each in (target.masks, target.label_map):
            if each is not None and tuple(each.shape[-2:]) != (picture.height, picture.width):
                height, width = each.shape[-2:]
                raise ValueError(f"its map is {width} x {height}, the picture {picture.width} x {picture.height}")
        return picture, target

    def without_masks(self) -> "Scenes":
        """The same scenes for a model that finds boxes alone."""
        return replace(self, read=BoxesAlone(self.read), has=self.has - {"masks"})

    def filename(self, index: int) -> str:
        """A name of the picture for reports."""
        return str(getattr(self.entries[index], "path", f"picture {index}"))

    def notes(self) -> list[str]:
        """What was left out, a line each."""
        return [f"{self.name}: {count} {what}" for what, count in sorted(self.left_out.items())]


def scenes_of(images: Sequence[Any], targets: Sequence[Target], classes: Sequence[str]) -> Scenes:
    """Scenes that are kept in memory.

    Args:
        images: Pictures of Pillow, or uint8 tensors (3, H, W).
        targets: One for each.
        classes: Names of the classes, in the order of the labels.

    >>> picture = torch.zeros(3, 8, 8, dtype=torch.uint8)
    >>> len(scenes_of([picture], [Target()], ["cat"]))
    1
    """
    if len(images) != len(targets):
        raise ValueError(f"{len(images)} images but {len(targets)} targets")
    for index, target in enumerate(targets):
        numbers = target.labels if target.label_map is None else target.label_map[target.label_map != IGNORED]
        if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(classes):
            raise ValueError(f"target {index} has the label {int(numbers.max())}; there are {len(classes)} classes")
        if target.boxes.shape != (len(target.labels), 4):
            raise ValueError(f"target {index} has {len(target.labels)} labels and boxes {tuple(target.boxes.shape)}")
    return Scenes(list(zip(images, targets)), _kept, tuple(classes), "scenes in memory", _held(targets))


def _held(targets: Sequence[Target]) -> frozenset[str]:
    """What all targets hold; one without objects lacks no masks."""
    masks = any(target.masks is not None for target in targets)
    if masks and all(target.masks is not None or not len(target.labels) for target in targets):
        return frozenset({"boxes", "masks"})
    maps = all(target.label_map is not None for target in targets)
    return frozenset({"label_map"} if maps else {"boxes"})


def _kept(pair: tuple[Any, Target]) -> tuple[Image.Image, Target]:
    image, target = pair
    if isinstance(image, Tensor):
        image = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
    return image, target


def cut_box(box: Sequence[float], width: float, height: float) -> tuple[float, float, float, float] | None:
    """A box (left, top, right, bottom) cut at the edges of its picture; None where it is broken or nothing is left.

    >>> cut_box((-5, 2, 10, 8), 20, 6), cut_box((3, 3, 3, 9), 20, 20)
    ((0.0, 2.0, 10.0, 6.0), None)
    """
    if len(box) != 4 or not all(isinstance(side, int | float) and abs(side) < 1e9 for side in box):
        return None
    left, right = (min(max(float(x), 0.0), float(width)) for x in (box[0], box[2]))
    top, bottom = (min(max(float(y), 0.0), float(height)) for y in (box[1], box[3]))
    if right - left < LEAST_SIDE or bottom - top < LEAST_SIDE:
        return None
    return left, top, right, bottom


def read_label_map(path: Any, table: Tensor | None = None) -> Tensor:
    """A picture of class numbers as (H, W) uint8, each number replaced by its entry of the table (256,).

    Args:
        path: A PNG or the like with one channel, or a palette.
        table: Number in the file → class; -1 for numbers that stand for nothing.
    """
    with Image.open(path) as file:
        if file.mode not in ("L", "P", "1", "I", "I;16"):
            raise ValueError(f"{path} is a picture of mode {file.mode}, not one of class numbers")
        numbers = torch.from_numpy(np.array(file).astype(np.int64))  # (H, W)
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) <= 255:
        raise ValueError(f"{path} has the class number {int(numbers.max())}; numbers go from 0 to 255")
    if table is None:
        return numbers.to(torch.uint8)
    found = table[numbers]
    if (found < 0).any():
        raise ValueError(f"{path} has the class number {int(numbers[found < 0][0])}, which nobody named")
    return found.to(torch.uint8)
