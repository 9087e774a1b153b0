"""How good label maps are: intersection over union by class, and the share of pixels that are right.

    C[t, p] = pixels of class t that were answered with p        IoU_c = C[c, c] / (Σ_p C[c, p] + Σ_t C[t, c] - C[c, c])

Pixels without a class are not counted; classes that neither occur nor were answered have no IoU. K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..data.dense import IGNORED
from .dense_result import DenseResult


@dataclass(frozen=True)
class Found:
    """How well a picture was answered; not a number where none of its pixels has a class."""

    index: int
    quality: float
    problem: str = ""


@dataclass(frozen=True)
class SegmentationResult(DenseResult):
    """How good a segmenter is, in per cent."""

    figure: ClassVar[str] = "IoU"
    miou: float
    pixel_accuracy: float
    images: int
    seconds: float
    classes: tuple[str, ...]
    by_class: tuple[float, ...]
    """IoU of each class; not a number where it neither occurs nor was answered."""
    qualities: dict[int, float]
    """Mean IoU of each picture, by its number."""
    damaged: int = 0

    def summary(self) -> dict[str, float]:
        """The figures that go to logs."""
        return {"miou": self.miou, "pixel_accuracy": self.pixel_accuracy}


def confusion(truth: Tensor, answer: Tensor, classes: int) -> Tensor:
    """How many pixels of each class were answered with each: (H, W), (H, W) → (K, K).

    >>> confusion(torch.tensor([[0, 1, 255]]), torch.tensor([[0, 0, 0]]), 2)
    tensor([[1, 0],
            [1, 0]])
    """
    counted = truth != IGNORED
    pairs = truth[counted].long() * classes + answer[counted].long()
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


def overlaps(counts: Tensor) -> Tensor:
    """Intersection over union of each class, not a number where there is none: (…, K, K) → (…, K)."""
    hits = counts.diagonal(dim1=-2, dim2=-1).double()
    return hits / (counts.sum(-1) + counts.sum(-2) - hits)


def picture_quality(counts: Tensor) -> float:
    """Mean intersection over union in one picture, from 0 to 1; not a number where no pixel has a class."""
    return overlaps(counts).nanmean().item()


def judge_maps(counts: Tensor, found: Sequence[Found], classes: tuple[str, ...], seconds: float) -> SegmentationResult:
    """The figures of all pictures.

    Args:
        counts: The confusions of all pictures together, (K, K).
        found: The quality of each picture.
        classes: Names of the classes.
        seconds: How long it took.
    """
    if not counts.any():
        raise ValueError("no picture has a pixel with a class, so there is nothing to judge")
    by_class, damaged = 100 * overlaps(counts), sum(bool(each.problem) for each in found)  # (K,)
    return SegmentationResult(
        miou=by_class.nanmean().item(),
        pixel_accuracy=100 * (counts.diagonal().sum() / counts.sum()).item(),
        images=len(found) - damaged,
        seconds=seconds,
        classes=classes,
        by_class=tuple(by_class.tolist()),
        qualities={each.index: each.quality for each in found if each.quality == each.quality},
        damaged=damaged,
    )
