"""Oxford-IIIT Pets as it comes: one pet a picture, of 37 breeds, with a trimap and, for some, a box of its head.

    FOLDER/images/Abyssinian_1.jpg   FOLDER/annotations/{trainval,test}.txt   trimaps/Abyssinian_1.png   xmls/…

A trimap says pet (1), background (2) or border (3). The mask of a pet is where the trimap says pet, its box the
smallest one around the mask; in label maps the border is not learnt. The official splits are trainval (train) and
test (val).
"""

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.ops import masks_to_boxes

from .dense import IGNORED, Scenes, Target, cut_box
from .dense_voc import read_boxes

LISTS = {"train": "trainval.txt", "val": "test.txt"}
PET, BACKGROUND = 1, 2
Kind = Literal["breeds", "species", "heads"]


@dataclass(frozen=True)
class PetEntry:
    """A picture, its trimap, its class, and the box of the head where that is what is wanted."""

    path: Path
    trimap: Path
    label: int
    head: tuple[float, float, float, float] | None = None


def open_pets(root: Path, split: str, kind: Kind = "breeds", label_maps: bool = False) -> Scenes:
    """The pictures of a split with a box and a mask each, or with a label map.

    Args:
        root: The folder with images and annotations in it.
        split: train (the official trainval) or val (test).
        kind: breeds: 37 classes. species: cat and dog. heads: boxes of heads of the species, for the pictures that
            have one; they exist for trainval alone, every fifth of which is kept for val.
        label_maps: Whether label maps are wanted, with background as the first class, instead of boxes and masks; of
            heads there are none.
    """
    label_maps = label_maps and kind != "heads"
    rows, left_out = _rows(root, split, kind), Counter()
    breeds = {number: name for name, number, _ in rows}
    names = (
        tuple(breeds[number].rpartition("_")[0] for number in sorted(breeds)) if kind == "breeds" else ("cat", "dog")
    )
    if kind == "breeds" and sorted(breeds) != list(range(1, len(breeds) + 1)):
        raise ValueError(f"{root / 'annotations'} lists breeds {sorted(breeds)}, which are not numbered one by one")
    entries = []
    for name, breed, species in rows:
        head = _head(root, name, left_out) if kind == "heads" else None
        if kind == "heads" and head is None:
            continue
        label = (breed if kind == "breeds" else species) - 1
        trimap = root / "annotations" / "trimaps" / f"{name}.png"
        entries.append(PetEntry(root / "images" / f"{name}.jpg", trimap, label, head))
    read: Callable[[PetEntry], tuple[Image.Image, Target]] = functools.partial(read_pet, label_map=label_maps)
    has = {"label_map"} if label_maps else {"boxes"} if kind == "heads" else {"boxes", "masks"}
    classes = ("background", *names) if label_maps else names
    return Scenes(entries, read, classes, f"{root} ({split}, {kind})", frozenset(has), +left_out)


def _rows(root: Path, split: str, kind: Kind) -> list[tuple[str, int, int]]:
    """(name, breed, species) of the pictures of a split."""
    listed = LISTS["train"] if kind == "heads" else LISTS.get(split, f"{split}.txt")
    path = root / "annotations" / listed
    if not path.is_file():
        raise ValueError(f"{root} has no split '{split}': looked for annotations/{listed}")
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 3 or not all(word.isdigit() for word in words[1:3]) or words[2] not in ("1", "2"):
            raise ValueError(f"line {number} of {path} is not 'name breed species …': {line[:60]!r}")
        rows.append((words[0], int(words[1]), int(words[2])))
    if kind == "heads":
        return [row for index, row in enumerate(rows) if (index % 5 == 0) == (split != "train")]
    return rows


def _head(root: Path, name: str, left_out: Counter[str]) -> tuple[float, float, float, float] | None:
    path = root / "annotations" / "xmls" / f"{name}.xml"
    if not path.is_file():
        left_out["pictures without a box of the head were left out"] += 1
        return None
    (width, height), objects = read_boxes(path)
    box = cut_box(objects[0][1], width, height) if objects else None
    left_out["broken boxes were left out"] += box is None
    return box


def read_pet(entry: PetEntry, label_map: bool = False) -> tuple[Image.Image, Target]:
    """Picture and target of an entry."""
    picture, label = Image.open(entry.path), torch.tensor([entry.label])
    if entry.head is not None:
        return picture, Target(torch.tensor([entry.head]), label)
    with Image.open(entry.trimap) as file:
        trimap = torch.from_numpy(np.array(file))  # (H, W)
    if label_map:
        return picture, Target(label_map=map_of(trimap, entry.label + 1))
    mask = trimap == PET
    if not mask.any():
        raise ValueError(f"{entry.trimap} shows no pet")
    boxes = masks_to_boxes(mask[None]) + torch.tensor([0, 0, 1, 1])  # (1, 4): to the far edge of the last pixel
    return picture, Target(boxes.float(), label, mask[None])


def map_of(trimap: Tensor, label: int) -> Tensor:
    """A trimap (H, W) as a label map: 0 the background, `label` the pet, nothing to learn at the border.

    >>> map_of(torch.tensor([[1, 2, 3]]), 5)
    tensor([[  5,   0, 255]], dtype=torch.uint8)
    """
    found = torch.full(trimap.shape, IGNORED, dtype=torch.uint8)
    found[trimap == PET] = label
    found[trimap == BACKGROUND] = 0
    return found
