"""Folders of pictures and of label maps: a map has the name of its picture and a class number for every pixel.

    FOLDER/images/train/a.jpg   FOLDER/labels/train/a.png          or          FOLDER/train/images   FOLDER/train/labels
    FOLDER/classes.txt          a name for the number 0, 1, 2 … in each line

Numbers called void, ignore, other, unlabelled or unlabeled, and 255, are not learnt; those below them move up.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from .dense import IGNORED, Scenes, Target, read_label_map
from .sources import SPLITS

MAPS = ("labels", "annotations", "masks", "label_maps")
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
VOID = ("void", "ignore", "other", "unlabelled", "unlabeled")


@dataclass(frozen=True)
class MapEntry:
    """A picture, the file of its label map, and what each number in it stands for."""

    path: Path
    label_map: Path
    table: tuple[int, ...]


def open_maps(root: Path, split: str) -> Scenes:
    """The pictures of a split that have a label map.

    Args:
        root: The folder with classes.txt in it.
        split: train or val.
    """
    names = SPLITS.get(split, (split,))
    places = [(root / "images" / name, root / maps / name) for name in names for maps in MAPS]
    places += [(root / name / "images", root / name / maps) for name in names for maps in MAPS]
    for pictures, maps in places:
        if pictures.is_dir() and maps.is_dir():
            classes, table = read_classes(root / "classes.txt")
            return pair_up(pictures, maps, classes, table)
    raise ValueError(
        f"{root} has no split '{split}' of label maps: looked for images/{split} and labels/{split}, or {split}/images "
        f"and {split}/labels (or {', '.join(MAPS[1:])} instead of labels)"
    )


def read_classes(path: Path) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names of the classes, and for each of the numbers 0 to 255 its class, IGNORED, or -1.

    Args:
        path: A text file with a name in each line.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not there: it names the class of the number 0, 1, 2 … in each line")
    names = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    if not 0 < len(names) <= 255:
        raise ValueError(f"{path} names {len(names)} classes; 1 to 255 would work")
    return table_of(names)


def table_of(names: list[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The classes among names of numbers, and the class of each number.

    >>> classes, table = table_of(["void", "cat", "dog"])
    >>> classes, table[:4], table[255]
    (('cat', 'dog'), (255, 0, 1, -1), 255)
    """
    table, classes = [-1] * 255 + [IGNORED], []
    for number, name in enumerate(names):
        if name.lower() in VOID:
            table[number] = IGNORED
        else:
            table[number] = len(classes)
            classes.append(name)
    return tuple(classes), tuple(table)


def pair_up(pictures: Path, maps: Path, classes: tuple[str, ...], table: tuple[int, ...]) -> Scenes:
    """Scenes of the pictures in one folder and the maps of the same names in another.

    A map lies in the same sub-folder as its picture; where it lies in another one, it is found by its name if no other
    picture and no other map has that name.

    Args:
        pictures: The folder of pictures.
        maps: The folder of label maps.
        classes: Names of the classes.
        table: What each number in a map stands for.
    """
    known = {place: path for path, place in _places(maps, (".png", ".bmp", ".tif")).items()}
    found = _places(pictures, PICTURES)
    counts = [Counter(place.name for place in places) for places in (set(found.values()), known)]
    by_name = {place.name: path for place, path in known.items() if all(each[place.name] == 1 for each in counts)}
    pairs = [(path, known.get(place) or by_name.get(place.name)) for path, place in found.items()]
    entries = [MapEntry(path, label_map, table) for path, label_map in pairs if label_map is not None]
    left_out = Counter({"pictures without a label map were left out": len(found) - len(entries)})
    return Scenes(entries, read_map, classes, str(pictures), frozenset({"label_map"}), +left_out)


def _places(folder: Path, endings: tuple[str, ...]) -> dict[Path, Path]:
    """The files below a folder that end so, and the place of each: its path from there, without the ending."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in endings]
    return {path: path.relative_to(folder).with_suffix("") for path in found}


def read_map(entry: MapEntry) -> tuple[Image.Image, Target]:
    """Picture and label map of an entry."""
    return Image.open(entry.path), Target(label_map=read_label_map(entry.label_map, torch.tensor(entry.table)))
