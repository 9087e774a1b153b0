"""How good a detector is on scenes in memory: the library's figures, without a mask leaving the device.

    pictures → boxes, scores, masks as their head gives them → pasted and run-length encoded, all at once → COCO's AP

A mask of 28 x 28 is put into its box as torchvision does it, W_y m W_xᵀ with the weights of bilinear interpolation;
only where a mask begins and ends along the columns goes to the host. n masks of H x W pixels.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from leanformer.data import Scenes, Target
from leanformer.tasks.detection_metrics import DetectionResult, Found, encoded, judge_boxes, quality_of
from leanformer.train.evaluation import Conditions

AT_A_TIME = 2
"""Pictures, where nobody says how many."""


def judge(detector: Any, data: Scenes, how: Conditions) -> DetectionResult:
    """COCO's figures of a detector.

    Args:
        detector: on its device.
        data: what `dense_album.in_memory` gives.
        how: device, precision, and how many pictures at a time.
    """
    start, album = time.perf_counter(), data.entries
    size, masks = how.batch_size or AT_A_TIME, "masks" in data.has
    found: list[Found] = []
    with how.judging(detector):
        for first in range(0, len(album), size):
            images = [photo.image.to(how.device).float() / 255 for photo in album[first : first + size]]
            answers = detector.found(images)
            sizes = [(image.shape[1], image.shape[2]) for image in images]
            rles = run_lengths_of(answers, sizes) if masks and "masks" in answers[0] else None
            found += _found(first, sizes, answers, rles, album, masks)
    return judge_boxes(found, data.classes, masks, time.perf_counter() - start)


def _found(
    first: int,
    sizes: Sequence[tuple[int, int]],
    answers: Sequence[dict[str, Tensor]],
    rles: Any,
    album: Any,
    masks: bool,
) -> list[Found]:
    """Truth and answers of some pictures in a row; one transfer from the device for all."""
    counts = [len(answer["scores"]) for answer in answers]
    boxes, scores, labels = (
        torch.cat([answer[name] for answer in answers]).float().cpu().split(counts)
        for name in ("boxes", "scores", "labels")
    )
    found = []
    for place, index in enumerate(range(first, first + len(answers))):
        answer = Target(boxes[place], labels[place].long() - 1)
        rows = _rows(answer, "score", scores[place].tolist(), rles[place] if rles else None)
        truth = album[index].target.without_crowds()
        quality = quality_of(Target(truth.boxes, truth.labels), answer, scores[place])
        found.append(Found(index, sizes[place], truth_of(album, index, masks), rows, quality))
    return found


def truth_of(album: Any, index: int, masks: bool) -> list[dict[str, Any]]:
    """What is in a picture, as COCO writes it down; encoded once.

    Args:
        album: photos.
        index: which of them.
        masks: whether masks are judged.
    """
    known = album.truth
    if (index, masks) not in known:
        target = album[index].target
        rles = [encoded(mask) for mask in target.masks] if masks else None
        known[index, masks] = _rows(target, "iscrowd", target.crowd.int().tolist(), rles)
    return known[index, masks]


def _rows(target: Target, name: str, extra: Sequence[Any], rles: Any) -> list[dict[str, Any]]:
    left, top, right, bottom = target.boxes.float().unbind(1)
    boxes = torch.stack([left, top, right - left, bottom - top], 1).tolist()
    rows: list[dict[str, Any]] = [
        {"category_id": label + 1, "bbox": box, name: value}
        for label, box, value in zip(target.labels.tolist(), boxes, extra)
    ]
    for row, rle in zip(rows, rles or ()):
        row["segmentation"] = rle
    return rows


def run_lengths_of(
    answers: Sequence[dict[str, Tensor]], sizes: Sequence[tuple[int, int]]
) -> list[list[dict[str, Any]]]:
    """The masks of each picture in COCO's run-length encoding; pictures of one size at once.

    Args:
        answers: boxes in the pictures' pixels, and masks (n, 1, s, s) within them, of each picture.
        sizes: height and width of each picture.
    """
    found: list[list[dict[str, Any]]] = [[] for _ in answers]
    for size in dict.fromkeys(sizes):
        mine = [place for place, each in enumerate(sizes) if each == size]
        counts = [len(answers[place]["boxes"]) for place in mine]
        boxes, masks = (torch.cat([answers[place][name] for place in mine]) for name in ("boxes", "masks"))
        every = run_lengths(pasted(masks[:, 0].float(), boxes.float(), size))
        for place, count in zip(mine, counts):
            found[place], every = every[:count], every[count:]
    return found


def pasted(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks (n, s, s) put into their boxes, column by column: (n, W, H), True where they are above a half.

    Args:
        masks: between 0 and 1.
        boxes: (n, 4).
        size: height and width of the picture.
    """
    side = masks.shape[1] + 2  # torchvision pads masks by a pixel and enlarges boxes to match
    centre, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2 * (side / (side - 2))
    corners = torch.cat([centre - half, centre + half], 1).long()  # (n, 4)
    with torch.autocast(masks.device.type, enabled=False):
        framed = F.pad(masks, (1, 1, 1, 1))
        across, down = (_weights(corners[:, axis], corners[:, axis + 2], side, size[1 - axis]) for axis in (0, 1))
        return across @ framed.mT @ down.mT > 0.5


def _weights(first: Tensor, last: Tensor, side: int, count: int) -> Tensor:
    """Of bilinear interpolation from `side` places to those from `first` to `last` of `count`: (n, count, side)."""
    length = (last - first + 1).clamp(min=1)[:, None]  # (n, 1)
    place = torch.arange(count, device=first.device) - first[:, None]  # (n, count)
    source = ((place + 0.5) * (side / length) - 0.5).clamp(0, side - 1)
    weights = (1 - (source[..., None] - torch.arange(side, device=first.device)).abs()).clamp(min=0)
    return weights * ((place >= 0) & (place < length))[..., None]


def run_lengths(columns: Tensor) -> list[dict[str, Any]]:
    """Masks (n, W, H) in COCO's run-length encoding, which goes down the columns: {size: [H, W], counts: bytes}.

    >>> run_lengths(torch.tensor([[[True, False], [False, True]]]))[0]["size"]
    [2, 2]
    """
    from faster_coco_eval.core import mask as coco

    count, width, height = columns.shape
    flat = columns.flatten(1)
    changes = flat ^ F.pad(flat[:, :-1], (1, 0))
    number, place = changes.nonzero().cpu().numpy().T
    ends = np.searchsorted(number, np.arange(count), side="right")
    found = []
    for first, last in zip([0, *ends[:-1].tolist()], ends.tolist()):
        runs = np.diff(place[first:last], prepend=0, append=width * height)
        found.append({"size": [height, width], "counts": runs.tolist()})
    return [coco.frPyObjects(each, height, width) for each in found]  # type: ignore[misc]
