"""The models of the study of dense tasks: a detector or segmenter, a backbone, a method, and how the method came there.

    from the start    method on the backbone (fitted to the backbone where that is trained) → detector → trained
    adopted           detector with the unchanged backbone, trained → method on it → fitted → trained by that one

The rows that tell most come first: the queue is worked off in their order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import Method, input_of
from leanformer.data import EvaluationView

from ..photographs import teacher_of
from .dense_album import Photo

DETECTORS = {"RetinaNet": "retinanet", "Mask R-CNN": "mask_rcnn"}
SEGMENTERS = {"Semantic FPN": "fpn", "UPerNet": "upernet"}
VIT, POOLFORMER, SWIN = "ViT-Ti", "PoolFormer-S12", "Swin-T"
NAMES = {VIT: "vit_tiny_patch16_224", POOLFORMER: "poolformer_s12", SWIN: "swin_tiny_patch4_window7_224"}
NARROW: dict[str, dict[str, Any]] = {
    VIT: {"depth": 2, "embed_dim": 32, "num_heads": 2},
    POOLFORMER: {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
    SWIN: {"depths": (1, 1, 1, 1), "embed_dim": 16, "num_heads": (1, 2, 2, 4)},
}
"""What makes the backbones of a dry run."""
METHODS: dict[str, Method] = {
    "RePa 0.5": lf.RePa(idle_ratio=0.5),
    "RePa 0.75": lf.RePa(idle_ratio=0.75),
    "RIFormer": lf.RIFormer(),
}
FITTED_ON = 256
"""Photographs that a method on a trained backbone is fitted on."""
REGIONS = 128
"""Regions of a picture that an R-CNN learns from, instead of 512: there is one pet in each."""
MOST_FOUND = 10
"""Boxes that a detector answers at most."""


@dataclass(frozen=True)
class Row:
    """A model to train."""

    kind: str
    backbone: str
    method: str = ""
    adopted: bool = False

    @property
    def label(self) -> str:
        words = (f"{self.kind}, {self.backbone}", self.method, "adopted" if self.adopted else "")
        return " ".join(word for word in words if word)

    @property
    def detects(self) -> bool:
        return self.kind in DETECTORS

    @property
    def unchanged(self) -> "Row":
        """The model around the backbone without a method."""
        return Row(self.kind, self.backbone)


def all_rows() -> Iterator[Row]:
    """Every row, those that tell most first.

    >>> rows = [row.label for row in all_rows()]
    >>> len(rows) == len(set(rows)), rows[0], rows[6]
    (True, 'RetinaNet, ViT-Ti', 'RetinaNet, ViT-Ti RePa 0.5 adopted')
    """
    idle, no_mixer = ("RePa 0.5", "RePa 0.75"), ("RIFormer",)
    for method in ("", *idle):
        yield from (Row(kind, VIT, method) for kind in DETECTORS)
    for kind in DETECTORS:
        yield from (Row(kind, VIT, method, adopted=True) for method in idle)
    yield from (Row("RetinaNet", POOLFORMER, method) for method in ("", *no_mixer, *idle))
    yield from (Row("Semantic FPN", VIT, method) for method in ("", *idle))
    yield from (Row("Semantic FPN", POOLFORMER, method) for method in ("", *no_mixer, *idle))
    yield from (Row("RetinaNet", POOLFORMER, method, adopted=True) for method in (*idle, *no_mixer))
    yield from (Row("UPerNet", VIT, method) for method in ("", *idle))
    yield from (Row("Mask R-CNN", POOLFORMER, method) for method in ("", *no_mixer, *idle))
    yield from (Row("UPerNet", POOLFORMER, method) for method in ("", *no_mixer, *idle))
    yield from (Row("Mask R-CNN", POOLFORMER, method, adopted=True) for method in (*idle, *no_mixer))
    for kind in ("RetinaNet", *SEGMENTERS, "Mask R-CNN"):
        yield from (Row(kind, SWIN, method) for method in ("", *idle))


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    detection: int = 256
    """The longer side of pictures as detectors see them."""
    segmentation: tuple[int, int] = (240, 320)
    """Height and width of what segmenters are trained on."""
    narrow: bool = False
    """Tiny models, to see whether every row runs."""


@dataclass(frozen=True)
class Builder:
    """Makes the models of rows.

    Args:
        checkpoint: weights of the ViT-Ti; without them it starts from scratch as the others do.
        sizes: how large everything is.
    """

    checkpoint: Path | None = None
    sizes: Sizes = Sizes()

    def trained(self, row: Row) -> bool:
        """Whether the backbone of a row starts from trained weights."""
        return row.backbone == VIT and self.checkpoint is not None

    def start(self, row: Row) -> str:
        """What a row starts from, in words."""
        if row.adopted:
            return "unchanged, trained; fitted"
        if not self.trained(row):
            return "scratch"
        return "ImageNet-21k and 1k" + (", fitted" if row.method else "")

    def backbone(self, row: Row) -> nn.Module:
        """The backbone of a row without its method."""
        if self.trained(row) and self.checkpoint is not None:
            return teacher_of(self.checkpoint)
        return lf.create(NAMES[row.backbone], **(NARROW[row.backbone] if self.sizes.narrow else {}))

    def model(self, row: Row, classes: tuple[str, ...], photos: list[Photo], device: torch.device) -> nn.Module:
        """The model of a row from the start, on the CPU.

        Args:
            row: a row that is not adopted.
            classes: names of the classes.
            photos: a method on a trained backbone is fitted on some of them.
            device: where it is fitted.
        """
        body = self.backbone(row)
        if row.method:
            lean = lf.apply(body, METHODS[row.method])
            if self.trained(row):
                images = seen_by(body, photos).to(device)
                lean = lf.calibrate(lean.to(device), body.to(device), images).cpu()
            body = lean
        return self.around(row, body, classes)

    def around(self, row: Row, body: nn.Module, classes: tuple[str, ...]) -> nn.Module:
        """A backbone in the row's detector or segmenter.

        Args:
            row: the row.
            body: the backbone, with its method.
            classes: names of the classes.
        """
        narrow: dict[str, Any] = {"channels": 64} if self.sizes.narrow else {}
        if not row.detects:
            return lf.tasks.segmenter(SEGMENTERS[row.kind], body, classes, **narrow)
        side = self.sizes.detection
        model: Any = lf.tasks.detector(
            DETECTORS[row.kind], body, classes, min_size=side, max_size=side, detections=MOST_FOUND, **narrow
        )
        return few_regions(model)

    def adopted(self, row: Row, teacher: nn.Module) -> nn.Module:
        """The method of a row on the trained model with the unchanged backbone.

        Args:
            row: an adopted row.
            teacher: what the row `row.unchanged` gave.
        """
        return few_regions(lf.apply(teacher, METHODS[row.method]))


def few_regions(model: Any) -> nn.Module:
    """The same model; one with two stages learns from fewer regions.

    Args:
        model: changed itself.
    """
    if hasattr(model, "roi_heads"):
        model.roi_heads.fg_bg_sampler.batch_size_per_image = REGIONS
    return model


def seen_by(model: nn.Module, photos: list[Photo]) -> Tensor:
    """Some photographs, spread evenly, as a classifier sees them: (n, 3, H, W).

    Args:
        model: the classifier.
        photos: all photographs.
    """
    view, every = EvaluationView(input_of(model)), max(1, len(photos) // FITTED_ON)
    return torch.cat([view(photo.image[None]) for photo in photos[::every][:FITTED_ON]])
