"""Batches that are cut out of scenes in memory, where they lie, and answers that are judged there.

    share of the area, ratio of the sides  →  part of the picture  →  flip  →  brightness        label maps: → one size

Detectors of small pictures wait for their data longer than for the device. So pictures are decoded once
(`dense_album`), and training takes its parts from where they lie; the draws follow from (seed, epoch, position) alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as V

from leanformer.core import Objective
from leanformer.data import Scenes
from leanformer.data.batches import Batch, Stretch
from leanformer.data.draws import key_of, uniforms
from leanformer.data.reading import Places
from leanformer.tasks import Detection, Segmentation
from leanformer.tasks.detection_metrics import DetectionResult
from leanformer.tasks.detector_targets import Objects, objects_of
from leanformer.train import Recipe
from leanformer.train.evaluation import Conditions

from .dense_album import Photo
from .dense_judging import judge

LEAST_SIDE = 1.0
"""Pixels: boxes of which less is left in a part are dropped."""


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
        return boxes_in([self], boxes, [len(boxes)])


def boxes_in(parts: Sequence[Part], boxes: Tensor, counts: Sequence[int]) -> Tensor:
    """Boxes (n, 4) in their parts, cut at their edges.

    Args:
        parts: of several pictures.
        boxes: those of the first picture, then those of the second, ….
        counts: boxes of each picture.
    """
    rows = [[part.left, part.top, part.width, part.height, part.flipped] for part in parts]
    every = torch.tensor(rows, dtype=boxes.dtype).repeat_interleave(torch.tensor(counts), 0)  # (n, 5)
    shift, most, flipped = every[:, [0, 1, 0, 1]], every[:, [2, 3, 2, 3]], every[:, 4:] > 0
    cut = torch.minimum((boxes - shift).clamp(min=0), most)
    turned = cut[:, [2, 1, 0, 3]]
    turned[:, ::2] = most[:, ::2] - turned[:, ::2]
    return torch.where(flipped, turned, cut)


def parts_of(data: Scenes, recipe: Recipe, stretch: Stretch) -> Iterator[list[tuple[Photo, Part]]]:
    """The photos of each micro-batch with the part that is shown of each."""
    album: Any = data.entries
    photos = album.on(stretch.device)
    for places in Places(stretch):
        epoch, positions = places[0][0], torch.tensor([position for _, position, _ in places])
        draws = uniforms(key_of(stretch.plan.seed, "part", epoch), positions, 6).tolist()
        chosen = [photos[index] for _, _, index in places]
        yield [(photo, Part.drawn(each, tuple(photo.image.shape[1:]), recipe)) for photo, each in zip(chosen, draws)]


@dataclass(frozen=True, kw_only=True)
class DetectionInMemory(Detection):
    """Detection on scenes of `in_memory`: batches come as the network sees them, answers are judged on the device."""

    def view(self, model: nn.Module) -> dict[str, Any]:
        transform: Any = model.transform
        sides = {"sides": (transform.min_size[-1], transform.max_size), "multiple": transform.size_divisible}
        return {**super().view(model), **sides, "normalised": (transform.image_mean, transform.image_std)}

    def batches(self, data: Scenes, recipe: Recipe, config: dict[str, Any], stretch: Stretch) -> Iterator[Batch]:
        mean, std = (torch.tensor(each)[:, None, None].to(stretch.device) for each in config["normalised"])
        for rows in parts_of(data, recipe, stretch):
            sizes = [seen_size((part.height, part.width), *config["sides"]) for _, part in rows]
            whole = tuple(-(-max(side) // config["multiple"]) * config["multiple"] for side in zip(*sizes))
            images = mean.expand(len(rows), len(mean), *whole).clone()  # (B, 3, H, W); the padding becomes 0
            for image, (photo, part), (height, width) in zip(images, rows, sizes):
                shown = part.of_image(photo.image)[None]
                image[:, :height, :width] = F.interpolate(shown, (height, width), mode="bilinear")[0]
            yield Batch((images - mean) / std, _objects(rows, sizes, "masks" in data.has))

    def answer(self, objective: Objective, student: Any, images: Any, targets: Any) -> Any:
        return student.learn(images, targets)

    def measure(self, model: Any, data: Scenes, config: dict[str, Any], how: Conditions) -> DetectionResult:
        return judge(getattr(model, "student", model), data, how)


def seen_size(size: tuple[int, int], least: int, most: int) -> tuple[int, int]:
    """Height and width of a picture as a detector sees it: torchvision's rule, to the last bit.

    >>> seen_size((300, 400), 256, 256)
    (192, 256)
    """
    scale = min(least / min(size), most / max(size))
    return math.floor(size[0] * scale), math.floor(size[1] * scale)


def _objects(rows: Sequence[tuple[Photo, Part]], sizes: Sequence[tuple[int, int]], masks: bool) -> Objects:
    """The objects of which something is left in the parts, as large as they are seen."""
    device, parts, counts = rows[0][0].image.device, [part for _, part in rows], [len(x.target.labels) for x, _ in rows]
    boxes = boxes_in(parts, torch.cat([photo.target.boxes for photo, _ in rows]), counts)  # (n, 4)
    kept = ((boxes[:, 2:] - boxes[:, :2]) >= LEAST_SIDE).all(1).split(counts)
    scales = torch.tensor([[w / part.width, h / part.height] * 2 for part, (h, w) in zip(parts, sizes)])
    targets, boxes = [], (boxes * scales.repeat_interleave(torch.tensor(counts), 0)).split(counts)
    for (photo, part), size, mine, fine in zip(rows, sizes, boxes, kept):
        whole_ones, labels = bool(fine.all()), photo.target.labels + 1
        targets.append(
            {"boxes": mine, "labels": labels} if whole_ones else {"boxes": mine[fine], "labels": labels[fine]}
        )
        if masks and photo.target.masks is not None:
            shown = part.of_map(photo.target.masks.view(torch.uint8))
            shown = shown if whole_ones else shown[fine.nonzero()[:, 0].to(device)]
            targets[-1]["masks"] = F.interpolate(shown[None], size)[0] if len(shown) else shown.new_zeros(0, *size)
    found = objects_of(targets, sizes)
    moved = {name: x.to(device, non_blocking=True) for name, x in vars(found).items() if isinstance(x, Tensor)}
    return replace(found, **moved)


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
