"""Pascal VOC: an XML file with boxes for each picture, and label maps for some of them.

    FOLDER/JPEGImages  Annotations  ImageSets/Main/train.txt                                  boxes
    FOLDER/JPEGImages  SegmentationClass  ImageSets/Segmentation/train.txt                    label maps

VOC counts pixels from 1 and includes the last one. Objects that it calls difficult are treated as crowds.
"""

import xml.etree.ElementTree as xml
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from .dense import IGNORED, Scenes, Target, cut_box
from .dense_maps import PICTURES, MapEntry, read_map
from .sources import SPLITS

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
TABLE = (*range(len(CLASSES) + 1), *[-1] * (254 - len(CLASSES)), IGNORED)
"""Number in a label map → class; 0 is the background."""


@dataclass(frozen=True)
class VocEntry:
    """A picture with boxes."""

    path: Path
    size: tuple[float, float]
    """Width and height as the annotation tells them."""
    boxes: tuple[tuple[float, float, float, float], ...]
    labels: tuple[int, ...]
    difficult: tuple[bool, ...]


def open_voc(root: Path, split: str, label_maps: bool = False) -> Scenes:
    """The pictures of a split with their boxes, or with their label maps.

    Args:
        root: The folder that has JPEGImages in it.
        split: train or val.
        label_maps: Whether label maps are wanted.
    """
    names = _names(root, split, "Segmentation" if label_maps else "Main")
    if label_maps:
        maps = [MapEntry(_picture(root, name), root / "SegmentationClass" / f"{name}.png", TABLE) for name in names]
        return Scenes(maps, read_map, ("background", *CLASSES), f"{root} ({split})", frozenset({"label_map"}))
    left_out: Counter[str] = Counter()
    found = {name: read_boxes(root / "Annotations" / f"{name}.xml") for name in names}
    classes = _classes(root, {each for _, objects in found.values() for each, _, _ in objects})
    entries = []
    for name, ((width, height), objects) in found.items():
        cut = [(each, cut_box(box, width, height), hard) for each, box, hard in objects]
        whole = [(classes.index(each), box, hard) for each, box, hard in cut if box is not None]
        left_out["broken boxes were left out"] += len(cut) - len(whole)
        labels, boxes, difficult = zip(*whole) if whole else ((), (), ())
        entries.append(VocEntry(_picture(root, name), (width, height), boxes, labels, difficult))
    left_out["pictures have no objects"] += sum(not entry.boxes for entry in entries)
    left_out["difficult objects are not learnt from"] += sum(sum(entry.difficult) for entry in entries)
    return Scenes(entries, read_voc, classes, f"{root} ({split})", frozenset({"boxes"}), +left_out)


Box = tuple[float, float, float, float]


def read_boxes(path: Path) -> tuple[tuple[float, float], list[tuple[str, Box, bool]]]:
    """Size (width, height) and objects (class, box, difficult) of an annotation file, boxes counted from 0.

    Args:
        path: The XML file.
    """
    try:
        tree = xml.parse(path).getroot()
        size = tuple(float(tree.findtext(f"size/{side}", "nan")) for side in ("width", "height"))
        objects = []
        for each in tree.iter("object"):
            sides = [float(each.findtext(f"bndbox/{side}", "nan")) for side in ("xmin", "ymin", "xmax", "ymax")]
            box = (sides[0] - 1, sides[1] - 1, sides[2], sides[3])
            objects.append((str(each.findtext("name")).strip(), box, each.findtext("difficult", "0").strip() == "1"))
    except (xml.ParseError, ValueError, OSError) as error:
        raise ValueError(f"{path} is no annotation of VOC: {error}") from error
    if not all(side > 0 for side in size):
        raise ValueError(f"{path} does not say how large its picture is")
    return (size[0], size[1]), objects


def _names(root: Path, split: str, kind: str) -> list[str]:
    """The names of a split's pictures: the first word of each line of its list."""
    for name in SPLITS.get(split, (split,)):
        path = root / "ImageSets" / kind / f"{name}.txt"
        if path.is_file():
            return [line.split()[0] for line in path.read_text().splitlines() if line.strip()]
    raise ValueError(f"{root} has no split '{split}': looked for ImageSets/{kind}/{split}.txt")


def _classes(root: Path, found: set[str]) -> tuple[str, ...]:
    """VOC's twenty classes, or, where others were found, the names in all annotation files."""
    if found <= set(CLASSES):
        return CLASSES
    every = {each for path in (root / "Annotations").glob("*.xml") for each, _, _ in read_boxes(path)[1]}
    return tuple(sorted(every | found))


def _picture(root: Path, name: str) -> Path:
    """The file of a picture: VOC's own end in .jpg, those of others may have another ending."""
    paths = [root / "JPEGImages" / f"{name}{ending}" for ending in PICTURES]
    return next((path for path in paths if path.is_file()), paths[0])


def read_voc(entry: VocEntry) -> tuple[Image.Image, Target]:
    """Picture and target of an entry."""
    boxes = torch.tensor(entry.boxes).reshape(-1, 4)  # (n, 4)
    labels, crowd = torch.tensor(entry.labels, dtype=torch.long), torch.tensor(entry.difficult, dtype=torch.bool)
    picture, (width, height) = Image.open(entry.path), entry.size
    if picture.size != (width, height):
        raise ValueError(f"the picture is {picture.width} x {picture.height}, not {width:g} x {height:g}")
    return picture, Target(boxes, labels, None, None, crowd)
