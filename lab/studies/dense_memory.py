"""Scenes that are decoded once and kept as tensors on the device, where batches are cut out of them.

    share of the area, ratio of the sides  →  part of the picture  →  flip  →  brightness        label maps: → one size

Detectors of small pictures wait for their data longer than for the device. So pictures are decoded once a process, by
threads, and training takes its parts from where they lie; the draws follow from (seed, epoch, position) alone. The
evaluation is the library's.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as V

from leanformer.data import Scenes, Target
from leanformer.data.batches import Batch, Stretch
from leanformer.data.draws import key_of, uniforms
from leanformer.data.kinds import UNREADABLE
from leanformer.data.reading import Places
from leanformer.tasks import Detection, Segmentation
from leanformer.tasks.detection import for_detector
from leanformer.train import Recipe

THREADS = 4
"""That decode pictures."""
LEAST_SIDE = 1.0
"""Pixels: boxes of which less is left in a part are dropped."""


@dataclass(frozen=True, eq=False)
class Photo:
    """A picture (3, H, W) of bytes, its target, and the file that it comes from."""

    path: str
    image: Tensor
    target: Target


class Album(list[Photo]):
    """Photos in memory, and copies of them on devices: pictures, masks and label maps; boxes stay on the host."""

    def __init__(self, photos: Sequence[Photo]):
        super().__init__(photos)
        self.copies: dict[torch.device, Album] = {}

    def on(self, device: torch.device) -> "Album":
        """The photos with their pixels on a device, moved there at the first call.

        Args:
            device: where batches are wanted.
        """
        if device.type == "cpu":
            return self
        if device not in self.copies:
            self.copies[device] = Album([_moved(photo, device) for photo in self])
        return self.copies[device]


def _moved(photo: Photo, device: torch.device) -> Photo:
    masks, label_map = (None if x is None else x.to(device) for x in (photo.target.masks, photo.target.label_map))
    return replace(photo, image=photo.image.to(device), target=replace(photo.target, masks=masks, label_map=label_map))


def in_memory(scenes: Scenes, most: int | None = None) -> Scenes:
    """The same scenes, decoded; pictures that cannot be read are left out and counted.

    Args:
        scenes: scenes in files.
        most: only so many, spread evenly over all of them.
    """
    count = len(scenes) if most is None else min(most, len(scenes))
    chosen = [index * len(scenes) // count for index in range(count)]

    def decoded(index: int) -> Photo | None:
        try:
            picture, target = scenes.picture(index)
        except UNREADABLE:
            return None
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()  # (3, H, W)
        return Photo(scenes.filename(index), pixels, target)

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(decoded, chosen))
    album = Album([photo for photo in found if photo is not None])
    left_out = scenes.left_out + Counter({"pictures that cannot be read were left out": len(found) - len(album)})
    return Scenes(album, _as_picture, scenes.classes, scenes.name, scenes.has, +left_out)


def _as_picture(photo: Photo) -> tuple[Image.Image, Target]:
    return Image.fromarray(photo.image.permute(1, 2, 0).contiguous().numpy()), photo.target


@dataclass(frozen=True)
class Part:
    """The part of a picture that is shown, whether it is flipped, and its brightness."""

    top: int
    left: int
    height: int
    width: int
    flipped: bool = False
    brightness: float = 1.0

    @classmethod
    def drawn(cls, draws: Sequence[float], size: tuple[int, int], recipe: Recipe) -> "Part":
        """A part by six numbers between 0 and 1; sides that exceed the picture are cut.

        Args:
            draws: for area, ratio, place (two), flip and brightness.
            size: height and width of the picture.
            recipe: `crop_scale`, `crop_ratio` (in those of the picture), `flip` and `color_jitter`.

        >>> Part.drawn([1.0, 0.5, 0, 0, 1.0, 0.5], (8, 6), Recipe(crop_scale=(0.25, 1.0), crop_ratio=(0.5, 2.0)))
        Part(top=0, left=0, height=8, width=6, flipped=False, brightness=1.0)
        """
        (least, most), (low, high) = recipe.crop_scale, recipe.crop_ratio
        area = least + draws[0] * (most - least)
        ratio = math.exp(math.log(low) + draws[1] * math.log(high / low))
        height = min(size[0], max(1, round(size[0] * math.sqrt(area / ratio))))
        width = min(size[1], max(1, round(size[1] * math.sqrt(area * ratio))))
        top, left = int(draws[2] * (size[0] - height + 1)), int(draws[3] * (size[1] - width + 1))
        return cls(top, left, height, width, draws[4] < recipe.flip, 1 + recipe.color_jitter * (2 * draws[5] - 1))

    def of_map(self, pixels: Tensor) -> Tensor:
        """The part of a picture or map (…, H, W)."""
        part = pixels[..., self.top : self.top + self.height, self.left : self.left + self.width]
        return part.flip(-1) if self.flipped else part

    def of_image(self, pixels: Tensor) -> Tensor:
        """The part of a picture of bytes, between 0 and 1, in its brightness."""
        return (self.of_map(pixels).float() * (self.brightness / 255)).clamp_(max=1.0)

    def of_boxes(self, boxes: Tensor) -> Tensor:
        """Boxes (n, 4) in the part, cut at its edges.

        >>> Part(0, 2, 4, 4, flipped=True).of_boxes(torch.tensor([[0.0, 1.0, 3.0, 9.0]]))
        tensor([[3., 1., 4., 4.]])
        """
        shift = torch.tensor([self.left, self.top, self.left, self.top])
        most = torch.tensor([self.width, self.height, self.width, self.height])
        cut = torch.minimum((boxes - shift).clamp(min=0), most)
        if self.flipped:
            cut = torch.stack([self.width - cut[:, 2], cut[:, 1], self.width - cut[:, 0], cut[:, 3]], 1)
        return cut


def parts_of(data: Scenes, recipe: Recipe, stretch: Stretch) -> Iterator[list[tuple[Photo, Part]]]:
    """The photos of each micro-batch with the part that is shown of each."""
    album: Any = data.entries
    photos = album.on(stretch.device)
    for places in Places(stretch):
        epoch, positions = places[0][0], torch.tensor([position for _, position, _ in places])
        draws = uniforms(key_of(stretch.plan.seed, "part", epoch), positions, 6).tolist()
        chosen = [photos[index] for _, _, index in places]
        yield [(photo, Part.drawn(each, tuple(photo.image.shape[1:]), recipe)) for photo, each in zip(chosen, draws)]


class DetectionInMemory(Detection):
    """Detection on scenes of `in_memory`."""

    def batches(self, data: Scenes, recipe: Recipe, config: dict[str, Any], stretch: Stretch) -> Iterator[Batch]:
        for rows in parts_of(data, recipe, stretch):
            images = [part.of_image(photo.image) for photo, part in rows]
            targets = [_objects(photo.target, part, "masks" in data.has) for photo, part in rows]
            counts = [len(target.labels) for target in targets]
            boxes = torch.cat([target.boxes for target in targets]).to(stretch.device, non_blocking=True).split(counts)
            labels = (
                torch.cat([target.labels for target in targets]).to(stretch.device, non_blocking=True).split(counts)
            )
            moved = [replace(target, boxes=b, labels=n) for target, b, n in zip(targets, boxes, labels)]
            yield Batch(images, [for_detector(target) for target in moved])


def _objects(target: Target, part: Part, masks: bool) -> Target:
    """The objects of which something is left in a part."""
    boxes = part.of_boxes(target.boxes)  # (n, 4)
    kept = ((boxes[:, 2:] - boxes[:, :2]) >= LEAST_SIDE).all(1)  # (n,)
    shown = part.of_map(target.masks) if masks and target.masks is not None else None
    if kept.all():
        return Target(boxes, target.labels, shown)
    rows = kept.nonzero()[:, 0]
    return Target(boxes[kept], target.labels[kept], None if shown is None else shown[rows.to(shown.device)])


class SegmentationInMemory(Segmentation):
    """Segmentation on scenes of `in_memory`."""

    def batches(self, data: Scenes, recipe: Recipe, config: dict[str, Any], stretch: Stretch) -> Iterator[Batch]:
        size = tuple(config["input_size"][1:])
        mean, std = list(config["mean"]), list(config["std"])
        for rows in parts_of(data, recipe, stretch):
            shown = [part.of_image(photo.image)[None] for photo, part in rows]
            images = [F.interpolate(x, size, mode="bilinear", antialias=True) for x in shown]  # (1, 3, h, w) each
            found: list[Any] = [part.of_map(photo.target.label_map)[None, None] for photo, part in rows]  # type: ignore[arg-type]
            maps = [F.interpolate(x, size, mode="nearest-exact") for x in found]  # (1, 1, h, w) each
            yield Batch(V.normalize(torch.cat(images), mean, std), torch.cat(maps)[:, 0].long())
