"""How good boxes and masks are: COCO's average precision by faster-coco-eval, and the quality of each picture.

    AP = mean over classes and over IoU 0.5, 0.55 … 0.95 of the area under the precision-recall curve
    quality of a picture = Σ IoU of matched objects / (matched + ½ too many + ½ missed)

Figures are in per cent. Crowds are neither hits nor misses.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from ..data.dense import Target
from .dense_result import DenseResult

FIGURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
MATCH = 0.5
"""The least overlap of a match, and the least score of what counts, in the quality of a picture."""


@dataclass
class Found:
    """What is in a picture and what was found in it, as plain values."""

    index: int
    size: tuple[int, int]
    truth: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    quality: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class DetectionResult(DenseResult):
    """How good a detector is. Figures are in per cent; those of sizes that no object has are left out."""

    figure: ClassVar[str] = "AP"
    figures: dict[str, float]
    images: int
    seconds: float
    classes: tuple[str, ...]
    by_class: tuple[float, ...]
    """AP of the boxes of each class; not a number where no object has it."""
    qualities: dict[int, float]
    """Of each picture, by its number."""
    damaged: int = 0

    def summary(self) -> dict[str, float]:
        """The figures that go to logs."""
        return dict(self.figures)


def found_in(index: int, size: tuple[int, int], truth: Target, answer: Target, scores: Tensor) -> Found:
    """Truth and answers of a picture.

    Args:
        index: The picture's number.
        size: Its height and width.
        truth: What is there.
        answer: What was found.
        scores: How sure each of these is, (n,).
    """
    return Found(
        index, size, _rows(truth, truth.crowd.tolist(), "iscrowd"), _rows(answer, scores.tolist(), "score"),
        quality_of(truth, answer, scores),
    )  # fmt: skip


def _rows(target: Target, extra: list[Any], name: str) -> list[dict[str, Any]]:
    left, top, right, bottom = target.boxes.float().unbind(1)
    boxes = torch.stack([left, top, right - left, bottom - top], dim=1).tolist()  # x, y, width, height
    rows = [{"category_id": label + 1, "bbox": box, name: int(value) if name == "iscrowd" else value}
            for label, box, value in zip(target.labels.tolist(), boxes, extra)]  # fmt: skip
    for row, area in zip(rows, target.areas.tolist() if target.areas is not None else ()):
        row["area"] = area
    for row, mask in zip(rows, target.masks if target.masks is not None else ()):
        row["segmentation"] = encoded(mask)
    return rows


def encoded(mask: Tensor) -> dict[str, Any]:
    """A mask (H, W) in COCO's run-length encoding: {size: [H, W], counts: bytes}.

    Args:
        mask: True, or 1, where the object is.
    """
    require_coco("masks are encoded")
    from faster_coco_eval.core import mask as masks

    return masks.encode(np.asfortranarray(mask.to(torch.uint8).numpy()))


def quality_of(truth: Target, answer: Target, scores: Tensor) -> float:
    """How well a picture was answered, from 0 to 1; 1 where nothing is there and nothing was found.

    What lies in a crowd of its class and matches no object is left out.

    Args:
        truth: What is there.
        answer: What was found.
        scores: How sure each of these is.

    >>> box = Target(torch.tensor([[0.0, 0.0, 4.0, 4.0]]), torch.tensor([1]))
    >>> quality_of(box, box, torch.tensor([0.9])), quality_of(box, Target(), torch.zeros(0))
    (1.0, 0.0)
    """
    order = [i for i in scores.argsort(descending=True).tolist() if scores[i] >= MATCH]
    crowded = _crowded(truth, answer)  # (answers,)
    truth = truth.without_crowds()
    overlaps = box_iou(answer.boxes.float(), truth.boxes.float())  # (answers, truth)
    free, matched, extra = set(range(len(truth.labels))), [], 0
    for i in order:
        same = [(overlaps[i, j].item(), j) for j in free if truth.labels[j] == answer.labels[i]]
        best, j = max(same, default=(0.0, -1))
        if best >= MATCH:
            free.remove(j)
            matched.append(best)
        else:
            extra += not crowded[i]
    total = len(matched) + 0.5 * extra + 0.5 * len(free)
    return sum(matched) / total if total else 1.0


def _crowded(truth: Target, answer: Target) -> Tensor:
    """Which answers lie, by half of their area at least, in a crowd of their class: (answers,)."""
    found, crowds = answer.boxes.float()[:, None], truth.boxes.float()[truth.crowd]  # (n, 1, 4), (m, 4)
    sides = torch.minimum(found[..., 2:], crowds[:, 2:]) - torch.maximum(found[..., :2], crowds[:, :2])
    inside = sides.clamp(min=0).prod(-1) >= MATCH * (found[..., 2:] - found[..., :2]).prod(-1)  # (n, m)
    return (inside & (answer.labels[:, None] == truth.labels[truth.crowd])).any(1)


def judge_boxes(found: Sequence[Found], classes: tuple[str, ...], masks: bool, seconds: float) -> DetectionResult:
    """COCO's figures of all pictures.

    Args:
        found: What is in each picture and what was found in it; a picture may come twice.
        classes: Names of the classes.
        masks: Whether masks are judged as well.
        seconds: How long it took to find all that.
    """
    pictures = {each.index: each for each in found if not each.problem}
    if not pictures:
        raise ValueError("none of the pictures can be read, so there is nothing to judge")
    figures, by_class = _average_precision(pictures, classes, "bbox")
    if masks:
        more, _ = _average_precision(pictures, classes, "segm")
        figures |= {f"mask_{name}": value for name, value in more.items()}
    damaged = len({each.index for each in found if each.problem})
    qualities = {index: each.quality for index, each in pictures.items()}
    return DetectionResult(figures, len(pictures), seconds, classes, by_class, qualities, damaged)


def _average_precision(
    pictures: dict[int, Found], classes: tuple[str, ...], kind: Any
) -> tuple[dict[str, float], tuple[float, ...]]:
    require_coco()
    from faster_coco_eval.core.coco import COCO
    from faster_coco_eval.core.faster_eval_api import COCOeval_faster

    images = [{"id": i, "height": each.size[0], "width": each.size[1]} for i, each in pictures.items()]
    truth = [{**row, "image_id": i} for i, each in pictures.items() for row in each.truth]
    for number, row in enumerate(truth, 1):
        row |= {"id": number, "area": row.get("area") or _area(row)}
    answers = [{key: value for key, value in row.items() if kind == "bbox" or key != "bbox"} | {"image_id": i}
               for i, each in pictures.items() for row in each.answers]  # fmt: skip
    if kind == "bbox":
        answers = [{key: value for key, value in row.items() if key != "segmentation"} for row in answers]
    categories = [{"id": number, "name": name} for number, name in enumerate(classes, 1)]
    known = COCO({"info": {}, "images": images, "annotations": truth, "categories": categories})
    judge = COCOeval_faster(known, known.loadRes(answers), kind, print_function=lambda *_: None)
    judge.run()
    figures = {name: 100 * float(value) for name, value in zip(FIGURES, judge.all_stats) if value >= 0}
    precision = np.asarray(judge.eval["precision"])[:, :, :, 0, -1]  # (IoU, recall, classes)
    by_class = [100 * float(np.mean(each[each >= 0])) if (each >= 0).any() else float("nan")
                for each in np.moveaxis(precision, 2, 0)]  # fmt: skip
    return figures, tuple(by_class)


def _area(row: dict[str, Any]) -> float:
    if "segmentation" not in row:
        return row["bbox"][2] * row["bbox"][3]
    from faster_coco_eval.core import mask as masks

    return float(masks.area(row["segmentation"]))


def require_coco(what: str = "average precision is computed") -> None:
    """Refuse to go on without faster-coco-eval, with the line that installs it.

    Args:
        what: What it is needed for.
    """
    if importlib.util.find_spec("faster_coco_eval") is None:
        raise ValueError(f"{what} by faster-coco-eval; pip install 'leanformer[dense]' brings it")
