"""COCO's instances: one JSON file a split with pictures, categories, boxes and polygons or run lengths as masks.

FOLDER/annotations/instances_train2017.json        FOLDER/train2017/000000000009.jpg
"""

import importlib.util
import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from .dense import Scenes, Target, cut_box
from .sources import SPLITS

FAR = 1e5
"""Pixels: a corner of a polygon that lies further away is no place of a picture."""


@dataclass(frozen=True)
class CocoObject:
    """An object of a picture: its box, its class from 0, and its mask as the file writes it."""

    box: tuple[float, float, float, float]
    label: int
    crowd: bool
    area: float
    mask: Any = None


@dataclass(frozen=True)
class CocoEntry:
    """A picture of the file with its objects."""

    path: Path
    width: int
    height: int
    objects: tuple[CocoObject, ...]


def open_coco(root: Path, split: str, masks: bool = False) -> Scenes:
    """The pictures of a split with boxes and, where they are wanted and the file has them, masks.

    Args:
        root: The folder that has `annotations` in it.
        split: train or val.
        masks: Whether masks are wanted.
    """
    path = annotation_file(root, split)
    if masks and importlib.util.find_spec("faster_coco_eval") is None:
        raise ValueError("masks of COCO files need faster-coco-eval; pip install 'leanformer[dense]' brings it")
    try:
        return _scenes(json.loads(path.read_text()), path, root, masks)
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no COCO instances file: {type(error).__name__} {error}") from error


def annotation_file(root: Path, split: str) -> Path:
    """The JSON file of a split."""
    for name in SPLITS.get(split, (split,)):
        found = sorted((root / "annotations").glob(f"instances_{name}*.json"))
        if found:
            return found[0]
    raise ValueError(f"{root} has no split '{split}': looked for annotations/instances_{split}*.json")


def _scenes(content: dict[str, Any], path: Path, root: Path, masks: bool) -> Scenes:
    categories = sorted(content["categories"], key=lambda each: each["id"])
    classes, number = (
        tuple(str(each["name"]) for each in categories),
        {each["id"]: i for i, each in enumerate(categories)},
    )
    left_out: Counter[str] = Counter()
    sizes = {each["id"]: (_side(each["width"]), _side(each["height"])) for each in content["images"]}
    objects: dict[Any, list[CocoObject]] = {key: [] for key in sizes}
    for each in content["annotations"]:
        found = _object(each, number, sizes, left_out, masks)
        if found is not None:
            objects[each["image_id"]].append(found)
    drawable = any(found.mask is not None for several in objects.values() for found in several)
    if drawable:
        for key, several in objects.items():
            objects[key] = [found for found in several if found.mask is not None]
            left_out["objects without a mask were left out"] += len(several) - len(objects[key])
    folder = _pictures(root, path, [str(each["file_name"]) for each in content["images"]])
    entries = [
        CocoEntry(folder / str(each["file_name"]), *sizes[each["id"]], tuple(objects[each["id"]]))
        for each in content["images"]
    ]
    if not any(entry.objects for entry in entries):
        why = "; ".join(f"{count} {what}" for what, count in sorted((+left_out).items()))
        raise ValueError(f"{path} has no object to be found{why and f': {why}'}")
    left_out["pictures have no objects"] += sum(not entry.objects for entry in entries)
    left_out["crowds are not learnt from"] += sum(found.crowd for entry in entries for found in entry.objects)
    has = frozenset({"boxes", "masks"} if drawable else {"boxes"})
    return Scenes(entries, read_coco, classes, str(path), has, +left_out)


def _side(given: Any) -> int:
    if not isinstance(given, int | float) or not 0 < given < FAR:
        raise TypeError(f"a picture's side is {str(given)[:30]!r}")
    return int(given)


def _object(
    found: dict[str, Any],
    number: dict[Any, int],
    sizes: dict[Any, tuple[int, int]],
    left_out: Counter[str],
    masks: bool,
) -> CocoObject | None:
    """An annotation as an object, or None where it is wrong, which is counted."""
    if found["image_id"] not in sizes:
        left_out["objects of pictures that are not listed were left out"] += 1
        return None
    if found["category_id"] not in number:
        left_out["objects of categories that are not listed were left out"] += 1
        return None
    width, height = sizes[found["image_id"]]
    given: Any = found.get("bbox") or ()
    numbers = len(given) == 4 and all(isinstance(side, int | float) for side in given)
    left, top, wide, high = given if numbers else (0, 0, 0, 0)
    box = cut_box((left, top, left + wide, top + high), width, height)
    if box is None:
        left_out["broken boxes were left out"] += 1
        return None
    mask = (found.get("segmentation") or None) if masks else None
    if isinstance(mask, dict) and mask.get("size") != [height, width]:
        left_out["objects with a mask of another size than their picture were left out"] += 1
        return None
    if isinstance(mask, list):
        mask = [part for part in mask if isinstance(part, list) and len(part) >= 6] or None
    if mask is not None and not is_drawable(mask, width * height):
        left_out["objects with a broken mask were left out"] += 1
        return None
    area: Any = found.get("area")
    known = isinstance(area, int | float) and 0 <= area < math.inf
    area = float(area) if known else (box[2] - box[0]) * (box[3] - box[1])
    return CocoObject(box, number[found["category_id"]], bool(found.get("iscrowd", 0)), area, mask)


def is_drawable(mask: Any, pixels: int) -> bool:
    """Whether polygons are made of numbers that lie near a picture, and run lengths make one up.

    Args:
        mask: As a file has it; of run lengths that are written as text, only that they are is looked at.
        pixels: Of the picture.

    >>> is_drawable([[0, 0, 4, 0, 4, float("nan")]], 16), is_drawable({"counts": [10, 6]}, 16)
    (False, True)
    """
    if isinstance(mask, list):
        return all(isinstance(x, int | float) and abs(x) < FAR for part in mask for x in part)
    counts = mask.get("counts") if isinstance(mask, dict) else None
    if isinstance(counts, list):
        return all(isinstance(each, int) and each >= 0 for each in counts) and sum(counts) == pixels
    return isinstance(counts, str)


def _pictures(root: Path, path: Path, names: list[str]) -> Path:
    """The folder in which the pictures lie."""
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{path} names the picture {name!r}, which lies outside of the data folder")
    split = path.stem.removeprefix("instances_")
    places = [root / split, root / "images" / split, root / "images", root]
    for place in places if names else ():
        if (place / names[0]).is_file():
            return place
    looked = ", ".join(str(place) for place in places)
    raise ValueError(f"the pictures of {path} are not there: looked for {names[0] if names else 'any'} in {looked}")


def read_coco(entry: CocoEntry) -> tuple[Image.Image, Target]:
    """Picture and target of an entry."""
    picture = Image.open(entry.path)
    if picture.size != (entry.width, entry.height):
        raise ValueError(f"the picture is {picture.width} x {picture.height}, not {entry.width} x {entry.height}")
    boxes = torch.tensor([each.box for each in entry.objects]).reshape(-1, 4)  # (n, 4)
    labels = torch.tensor([each.label for each in entry.objects], dtype=torch.long)
    crowd = torch.tensor([each.crowd for each in entry.objects], dtype=torch.bool)
    masks = None
    if any(each.mask is not None for each in entry.objects):
        masks = torch.stack([drawn(each.mask, entry.width, entry.height) for each in entry.objects])  # (n, H, W)
    areas = torch.tensor([each.area for each in entry.objects])
    return picture, Target(boxes, labels, masks, None, crowd, areas)


def drawn(mask: Any, width: int, height: int) -> torch.Tensor:
    """A mask of polygons or run lengths as (H, W) of True and False, with COCO's own rounding.

    Args:
        mask: Polygons as lists of x and y by turns, or a dict of counts and size.
        width: Of the picture.
        height: Of the picture.
    """
    from faster_coco_eval.core import mask as masks

    try:
        found = masks.decode(masks.segmToRle(mask, width, height))
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"a mask cannot be read: {error}") from error
    return torch.from_numpy(np.ascontiguousarray(found)).bool()
