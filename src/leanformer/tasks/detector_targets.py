"""What the pictures of a batch hold, in tensors of one shape, and which box an anchor or a region belongs to.

    overlap (B, M, A) = area of box ∩ anchor / area of box ∪ anchor        match (B, A): 0 … M - 1, BELOW or BETWEEN

As torchvision matches and samples, picture by picture; but for all of them at once, without waiting for the device.

B batch, M most objects of a picture, A anchors or regions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import box_iou

BELOW, BETWEEN = -1, -2
"""Matches of anchors that show the background, and of those that are neither learnt as that nor as an object."""
AT_A_TIME = 1 << 25
"""Overlaps that are computed at a time: of COCO's pictures a batch has 100 times as many."""


@dataclass(frozen=True)
class Objects:
    """The objects of a batch of pictures."""

    boxes: Tensor
    """(B, M, 4): left, top, right, bottom in pixels of the batch."""
    labels: Tensor
    """(B, M), from 1."""
    there: Tensor
    """(B, M): whether there is such an object; the others only fill the tensors up."""
    sizes: Tensor
    """(B, 2): height and width of each picture; the rest of its part of the batch is padding."""
    masks: tuple[Tensor, ...] | None = None
    """Those of each picture, (n, height, width); as many and as large as they are, or they would fill the device."""


def objects_of(targets: Sequence[dict[str, Tensor]], sizes: Sequence[tuple[int, int]]) -> Objects:
    """The targets of torchvision's convention as tensors of one shape.

    Args:
        targets: boxes, labels and masks of each picture, as large as the network sees it.
        sizes: height and width of each picture.

    >>> one = {"boxes": torch.tensor([[0.0, 0.0, 4.0, 4.0]]), "labels": torch.tensor([3])}
    >>> none = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
    >>> objects_of([one, none], [(8, 8), (8, 6)]).there
    tensor([[ True],
            [False]])
    """
    counts = [len(target["boxes"]) for target in targets]
    most, device = max(1, *counts), targets[0]["boxes"].device
    rows = on(device, [b * most + m for b, count in enumerate(counts) for m in range(count)], torch.long)

    def filled(name: str) -> Tensor:
        found = torch.cat([target[name] for target in targets])
        if len(found) == len(targets) * most:
            return found.unflatten(0, (-1, most))
        return (
            found.new_zeros(len(targets) * most, *found.shape[1:]).index_copy(0, rows, found).unflatten(0, (-1, most))
        )

    there = on(device, [[m < count for m in range(most)] for count in counts])
    masks = tuple(target["masks"] for target in targets) if "masks" in targets[0] else None
    return Objects(filled("boxes"), filled("labels").long(), there, on(device, sizes), masks)


def check_targets(targets: Sequence[dict[str, Tensor]] | None, images: Sequence[Tensor], names: Sequence[str]) -> None:
    """Refuse targets that a detector cannot learn from, as torchvision does, and those that do not fit their images.

    Args:
        targets: one for each image.
        images: each (C, H, W).
        names: what each target has to hold: boxes, labels and perhaps masks.
    """
    torch._assert(targets is not None, "targets should not be none when in training mode")
    targets = targets or ()
    if len(targets) != len(images):
        raise ValueError(f"{len(images)} images came with {len(targets)} targets: give one for each image")
    for index, (target, image) in enumerate(zip(targets, images)):
        for name in names:
            if name not in target:
                raise ValueError(f"Every element of targets should have a {name} key")
        boxes = target["boxes"]
        torch._assert(isinstance(boxes, Tensor), f"Expected target boxes to be of type Tensor, got {type(boxes)}.")
        flat = boxes.ndim == 2 and boxes.shape[1] == 4
        torch._assert(flat, f"Expected target boxes to be a tensor of shape [N, 4], got {boxes.shape}.")
        for name in names:
            if len(target[name]) != len(boxes):
                found = f"{len(boxes)} boxes and {len(target[name])} {name}"
                raise ValueError(f"target {index} has {found}: give one for each box")
        if "masks" in names and len(boxes) and target["masks"].shape[-2:] != image.shape[-2:]:
            sizes = " x ".join(map(str, target["masks"].shape[-2:])), " x ".join(map(str, image.shape[-2:]))
            raise ValueError(f"the masks of target {index} are {sizes[0]}, its image {sizes[1]}: make them as large")


def check_objects(targets: Sequence[dict[str, Tensor]], classes: int) -> None:
    """Refuse boxes without area, as torchvision does, and labels of no class; the device is waited for once.

    Args:
        targets: boxes and labels of each picture.
        classes: how many there are.
    """
    boxes, labels = (torch.cat([target[name] for target in targets]) for name in ("boxes", "labels"))
    sides = boxes[:, 2:] - boxes[:, :2]
    flat = ~((sides > 0) & sides.isfinite()).all(1)
    wrong = flat | (labels < 1) | (labels > classes)
    if wrong.any():
        first = int(wrong.nonzero()[0])
        index = next(i for i in range(len(targets)) if first < sum(len(each["boxes"]) for each in targets[: i + 1]))
        if flat[first]:
            found = f"Found invalid box {boxes[first].tolist()} for target at index {index}."
            raise AssertionError(f"All bounding boxes should have positive height and width. {found}")
        raise ValueError(
            f"target {index} has the label {labels[first].item()}; a detector of {classes} classes has 1 … {classes}"
        )


def on(device: torch.device, values: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Plain values as a tensor on a device, which is not waited for.

    >>> on(torch.device("cpu"), [1, 2])
    tensor([1, 2])
    """
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


@torch.no_grad()
def match(objects: Objects, anchors: Tensor, matcher: Any) -> Tensor:
    """The object that each anchor belongs to: (B, A).

    Args:
        objects: what the pictures hold.
        anchors: (A, 4), the same for all pictures, or (B, A, 4).
        matcher: torchvision's, for its thresholds.
    """
    at_once = max(1, AT_A_TIME // max(1, objects.boxes.shape[1] * anchors.shape[-2]))
    parts = zip(
        objects.boxes.split(at_once), objects.there.split(at_once),
        anchors.split(at_once) if anchors.ndim == 3 else [anchors] * len(objects.boxes),
    )  # fmt: skip
    return torch.cat([_matched(boxes, there, here, matcher) for boxes, there, here in parts])


def _matched(boxes: Tensor, there: Tensor, anchors: Tensor, matcher: Any) -> Tensor:
    quality = torch.where(there[..., None], box_iou(boxes, anchors), -1.0)  # (B, M, A)
    best, index = quality.max(1)  # (B, A)
    found = torch.where(best < matcher.low_threshold, BELOW, torch.where(best < matcher.high_threshold, BETWEEN, index))
    if not matcher.allow_low_quality_matches:
        return found
    # each object keeps the anchors that overlap it most, however little that is
    most = quality.amax(2, keepdim=True)  # (B, M, 1)
    return torch.where(((quality == most) & there[..., None]).any(1), index, found)


def of_matched(values: Tensor, found: Tensor) -> Tensor:
    """What the objects (B, M, …) that anchors belong to have: (B, A, …); that of object 0 where it is none.

    Args:
        values: such as boxes or labels.
        found: what `match` gave.
    """
    index = found.clamp(min=0)
    return (
        values.gather(1, index)
        if values.ndim == 2
        else values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))
    )


@torch.no_grad()
def sample(objects: Tensor, background: Tensor, count: int, share: float) -> tuple[Tensor, Tensor]:
    """Random places of each picture: objects up to a share, background for the rest.

    Args:
        objects: (B, A), which places show one.
        background: (B, A), which show the background.
        count: how many places of each picture.
        share: of objects at most.

    Returns:
        Their numbers (B, S), objects first, and whether each of these is one that was wanted (B, S).

    >>> places, chosen = sample(torch.tensor([[True, False, False]]), torch.tensor([[False, True, True]]), 2, 0.5)
    >>> int(places[0, 0]), bool(chosen.all()), places.shape
    (0, True, torch.Size([1, 2]))
    """
    most = min(int(count * share), objects.shape[1])
    rest = min(count, objects.shape[1])
    keys = torch.rand(objects.shape, device=objects.device)
    first, one = torch.where(objects, keys, -1.0).topk(most, 1)  # (B, most)
    second, other = torch.where(background, keys, -1.0).topk(rest, 1)  # (B, rest)
    left = count - (first >= 0).sum(1, keepdim=True)  # (B, 1)
    chosen = torch.cat([first >= 0, (second >= 0) & (torch.arange(rest, device=keys.device) < left)], 1)
    order = (~chosen).to(torch.uint8).argsort(dim=1, stable=True)[:, :count]
    return torch.cat([one, other], 1).gather(1, order), chosen.gather(1, order)


def encode(boxes: Tensor, anchors: Tensor, weights: Sequence[float]) -> Tensor:
    """How anchors are to be moved to become boxes: (…, 4), each times its weight.

    >>> encode(torch.tensor([[2.0, 0.0, 6.0, 4.0]]), torch.tensor([[0.0, 0.0, 4.0, 4.0]]), (1, 1, 1, 1))
    tensor([[0.5000, 0.0000, 0.0000, 0.0000]])
    """
    sides, wanted = (each[..., 2:] - each[..., :2] for each in (anchors, boxes))
    shift = ((boxes[..., :2] + 0.5 * wanted) - (anchors[..., :2] + 0.5 * sides)) / sides  # 0 for the same box, exactly
    return torch.cat([shift, (wanted / sides).log()], -1) * on(boxes.device, weights, boxes.dtype)


def decode(moves: Tensor, anchors: Tensor, coder: Any) -> Tensor:
    """Anchors after their moves, (…, 4): the inverse of `encode`.

    Args:
        moves: (…, 4).
        anchors: (…, 4).
        coder: torchvision's, for its weights and for how much larger an anchor can become.
    """
    sides = anchors[..., 2:] - anchors[..., :2]
    x, y, w, h = coder.weights
    centre = moves[..., :2] / _pair(x, y, moves) * sides + (anchors[..., :2] + 0.5 * sides)
    half = 0.5 * (moves[..., 2:] / _pair(w, h, moves)).clamp(max=coder.bbox_xform_clip).exp() * sides
    return torch.cat([centre - half, centre + half], -1)


def _pair(one: float, other: float, like: Tensor) -> Any:
    return one if one == other else on(like.device, [one, other], like.dtype)


def within(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Boxes (B, A, 4) cut at the edges of their pictures, of height and width (B, 2)."""
    edge = sizes.flip(1).repeat(1, 2)[:, None].to(boxes.dtype)  # (B, 1, 4): width, height, width, height
    return torch.minimum(boxes.clamp(min=0), edge)


def padded(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Index lists of pictures as (B, P), and which of these are there, (B, P).

    >>> padded([torch.tensor([4, 2]), torch.tensor([7])])[0]
    tensor([[4, 2],
            [7, 0]])
    """
    most = max(1, *(len(part) for part in parts))
    counts = on(parts[0].device, [[len(part)] for part in parts])
    index = torch.stack([F.pad(part, (0, most - len(part))) for part in parts])
    return index, torch.arange(most, device=index.device) < counts
