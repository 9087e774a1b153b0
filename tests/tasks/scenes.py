"""Scenes that tests draw (squares and discs on noise, with boxes, masks and label maps), and small models for them."""

from typing import Any

import torch
from torch import Tensor, nn

import leanformer as lf
from leanformer.data.dense import Scenes, Target, scenes_of

CLASSES = ("square", "disc")


def draw_scene(index: int, size: int = 64, label_map: bool = False) -> tuple[Tensor, Target]:
    """A picture (3, size, size) with one square or disc, or both; everything follows from its number."""
    generator = torch.Generator().manual_seed(1000 + index)
    picture = torch.randint(0, 80, (3, size, size), generator=generator)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    masks, labels = [], []
    for label in (index % 2,) if index % 3 else (0, 1):
        radius = int(torch.randint(size // 8, size // 5, (1,), generator=generator))
        wide = size if index % 3 else size // 2  # of two, each has a half of its own
        at = [int(torch.randint(radius + 1, side - radius - 1, (1,), generator=generator)) for side in (size, wide)]
        at[1] += size // 2 * len(masks)
        inside = ((y - at[0]).abs().maximum((x - at[1]).abs()) if label == 0 else
                  ((y - at[0]) ** 2 + (x - at[1]) ** 2).float().sqrt()) <= radius  # fmt: skip
        colour = torch.tensor([220, 60, 40] if label == 0 else [40, 120, 220])[:, None]
        picture[:, inside] = colour + torch.randint(0, 30, (3, int(inside.sum())), generator=generator)
        masks.append(inside)
        labels.append(label)
    stacked = torch.stack(masks)
    if label_map:
        whole = torch.zeros(size, size, dtype=torch.uint8)
        for mask, label in zip(masks, labels):
            whole[mask] = label + 1
        return picture.to(torch.uint8), Target(label_map=whole)
    boxes = torch.stack([torch.tensor([mask.any(0).nonzero()[0].item(), mask.any(1).nonzero()[0].item(),
                                       mask.any(0).nonzero()[-1].item() + 1, mask.any(1).nonzero()[-1].item() + 1])
                         for mask in masks]).float()  # fmt: skip
    return picture.to(torch.uint8), Target(boxes, torch.tensor(labels), stacked)


def scenes(first: int, count: int, size: int = 64, label_map: bool = False, masks: bool = True) -> Scenes:
    """So many scenes, from the one of number `first` on."""
    pairs = [draw_scene(index, size, label_map) for index in range(first, first + count)]
    if not masks and not label_map:
        pairs = [(image, Target(target.boxes, target.labels)) for image, target in pairs]
    return scenes_of(*zip(*pairs), ("background", *CLASSES) if label_map else CLASSES)


def backbone() -> nn.Module:
    """A PoolFormer of four small stages, with strides from 2 to 16."""
    torch.manual_seed(0)
    return lf.create(
        "metaformer", depths=(1, 1, 1, 1), dims=(16, 32, 32, 32), mlp_ratios=2.0, stem=(3, 2, 1),
        layer_scale_init_values=None,
    )  # fmt: skip


def small_detector(kind: str = "retinanet", side: int = 64, body: nn.Module | None = None, classes: int = 2) -> Any:
    """A detector for pictures of `side` pixels."""
    body = backbone() if body is None else body
    levels = {"levels": (1, 2)} if kind == "retinanet" else {"levels": (1, 2, 3)}
    return lf.tasks.detector(kind, body, classes=classes, channels=32, min_size=side, max_size=side, **levels)


def small_segmenter(body: nn.Module | None = None, classes: int = 3) -> Any:
    """A Semantic FPN."""
    return lf.tasks.segmenter("fpn", backbone() if body is None else body, classes=classes, channels=64)
