"""What rows say of pictures that were searched for objects, or divided into regions.

    detection      boxes (n, 4): left, top, right, bottom     scores, classes, names (n,)     masks (n,): COCO's runs
    segmentation   label_map: a PNG of the picture's size     classes, names, shares of those that occur

Places are pixels of the picture. n objects, K classes, H x W the picture.
"""

import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.transforms.v2 import functional as F

from ..tasks.detection_metrics import encoded
from ..tasks.drawing import colour_of
from ..tasks.segmentation import label_maps
from .answers import Field, Found
from .views import LONGEST

SIZE = Field("size", "int32", (2,))
"""Height and width of the picture."""
Images = Sequence[Tensor | None]


@dataclasses.dataclass(frozen=True)
class Objects:
    """The objects in each picture, the surest first.

    Attributes:
        model: Images (C, H, W) between 0 and 1 → one dict each of boxes, labels from 1, scores (and small masks).
        classes: The names of the classes.
        masks: Whether the model gives masks.
    """

    model: Callable[[list[Tensor]], list[dict[str, Tensor]]]
    classes: Sequence[str]
    masks: bool = False

    @property
    def fields(self) -> list[Field]:
        fields = [SIZE, Field("boxes", "float32", (None, 4)), Field("scores", "float32", (None,))]
        fields += [Field("classes", "int32", (None,)), Field("names", "text", (None,))]
        return [*fields, Field("masks", "text", (None,))] if self.masks else fields

    def compute(self, images: Images) -> Found:
        answers = iter(self.model([image.float() / 255 for image in images if image is not None]))
        empty = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0)}
        empty |= {"masks": torch.zeros(0, 1, 1, 1)} if self.masks else {}
        rows = [empty if image is None else _on_cpu(next(answers)) for image in images]
        found: Found = {"size": _sizes(images), "count": torch.tensor([len(row["scores"]) for row in rows])}
        for name in ("boxes", "scores", "labels"):
            found[name] = pad_sequence([row[name] for row in rows], batch_first=True)  # (B, most, …)
        if self.masks:
            found["masks"] = [row["masks"] for row in rows]
        return found

    def columns(self, found: dict[str, Any]) -> dict[str, Any]:
        counts = found["count"].tolist()
        columns = {name: [row[:n] for row, n in zip(found[name], counts)] for name in ("boxes", "scores")}
        columns["classes"] = [row[:n].astype(np.int32) - 1 for row, n in zip(found["labels"], counts)]
        columns["names"] = [[self.classes[label] for label in row.tolist()] for row in columns["classes"]]
        if self.masks:
            columns["masks"] = [runs(*each) for each in zip(found["masks"], columns["boxes"], found["size"].tolist())]
        return {"size": found["size"], **columns}


def runs(masks: np.ndarray, boxes: np.ndarray, size: Sequence[int]) -> list[str]:
    """Masks in COCO's run-length encoding; {"size": size, "counts": counts} is what its tools take.

    Args:
        masks: Probabilities within each box (n, 1, h, w).
        boxes: Left, top, right, bottom in pixels (n, 4).
        size: Height and width of the picture.
    """
    found = []
    for index in range(len(boxes)):  # one by one: a hundred masks of a photograph would fill the memory
        one = slice(index, index + 1)
        whole = paste_masks_in_image(torch.tensor(masks[one]), torch.tensor(boxes[one]), (size[0], size[1]))
        found.append(encoded(whole[0, 0] > 0.5)["counts"].decode())
    return found


@dataclasses.dataclass(frozen=True)
class Regions:
    """A class for each pixel, and the share of the picture that each class has.

    Attributes:
        model: Normalised images (B, C, h, w) → logits (B, K, h, w).
        classes: The names of the classes.
        mean: Of the normalisation.
        std: Of the normalisation.
    """

    model: Callable[[Tensor], Tensor]
    classes: Sequence[str]
    mean: Sequence[float]
    std: Sequence[float]

    @property
    def fields(self) -> list[Field]:
        some = [
            Field("classes", "int32", (None,)),
            Field("names", "text", (None,)),
            Field("shares", "float32", (None,)),
        ]
        return [SIZE, Field("label_map", "bytes"), *some]

    def compute(self, images: Images) -> Found:
        pictures = [image for image in images if image is not None]
        finite: list[bool] = []

        def watched(batch: Tensor) -> Tensor:
            logits = self.model(batch)
            finite.extend(logits.isfinite().flatten(1).all(1).tolist())
            return logits

        sizes = [(image.shape[1], image.shape[2]) for image in pictures]
        answers = zip(list(label_maps(watched, [self._seen(image) for image in pictures], sizes)), finite)
        maps, shares, total = [], [], len(self.classes)
        for image in images:
            answer, good = (torch.zeros(0, 0, dtype=torch.long), True) if image is None else next(answers)
            maps.append(answer.to(torch.uint8 if total <= 256 else torch.int32))
            counted = answer.flatten().bincount(minlength=total).cpu() / max(1, answer.numel())  # (K,)
            shares.append(counted if good else counted * torch.nan)
        return {"size": _sizes(images), "maps": maps, "shares": torch.stack(shares)}

    def _seen(self, image: Tensor) -> Tensor:
        """A picture as the model sees it, normalised, at most LONGEST pixels long."""
        factor = LONGEST / max(image.shape[1:])
        pixels = image.float() / 255
        if factor < 1:
            pixels = F.resize(pixels, [max(1, round(side * factor)) for side in image.shape[1:]], antialias=True)
        return F.normalize(pixels, [*self.mean], [*self.std])

    def columns(self, found: dict[str, Any]) -> dict[str, Any]:
        order = [np.argsort(-row, kind="stable")[: np.count_nonzero(row)].astype(np.int32) for row in found["shares"]]
        return {
            "size": found["size"],
            "label_map": [png(each, len(self.classes)) if each.size else b"" for each in found["maps"]],
            "classes": order,
            "names": [[self.classes[label] for label in row.tolist()] for row in order],
            "shares": [row[each] for row, each in zip(found["shares"], order)],
        }


def png(label_map: np.ndarray, classes: int) -> bytes:
    """A label map as a PNG whose pixels are classes, with a colour for each; above 256 classes 16 bits and no colours.

    Args:
        label_map: Classes (H, W).
        classes: How many there are.

    >>> np.asarray(Image.open(io.BytesIO(png(np.array([[0, 2]], np.uint8), 3)))).tolist()
    [[0, 2]]
    """
    if classes > 256:
        picture = Image.fromarray(label_map.astype(np.uint16))
    else:
        picture = Image.fromarray(label_map).convert("P")
        picture.putpalette([value for label in range(classes) for value in colour_of(label)])
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _on_cpu(answer: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.float().cpu() for name, value in answer.items()}


def _sizes(images: Images) -> Tensor:
    """Height and width of each picture (B, 2), zeros where there is none."""
    return torch.tensor([(0, 0) if image is None else tuple(image.shape[1:]) for image in images], dtype=torch.int32)
