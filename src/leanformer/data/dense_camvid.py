"""CamVid: street scenes with eleven classes, in the form of its authors or in SegNet's.

    FOLDER/train/x.png   FOLDER/trainannot/x.png                                       numbers; 11 is not learnt
    FOLDER/701_StillsRaw_full/x.png   FOLDER/LabeledApproved_full/x_L.png              colours of 32 classes
    FOLDER/images/x.png  FOLDER/labels/x_P.png  FOLDER/codes.txt  FOLDER/valid.txt     numbers of 32 classes

The 32 classes are taken together to the eleven that results are told of. Splits of the second form stand in train.txt,
val.txt and test.txt, of the third in valid.txt.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .dense import IGNORED, Scenes, Target
from .dense_maps import PICTURES, pair_up, table_of
from .sources import SPLITS

GROUPS = {
    "Sky": ("Sky",),
    "Building": ("Archway", "Bridge", "Building", "Tunnel", "Wall"),
    "Pole": ("Column_Pole", "TrafficCone"),
    "Road": ("Road", "LaneMkgsDriv", "LaneMkgsNonDriv"),
    "Pavement": ("Sidewalk", "ParkingBlock", "RoadShoulder"),
    "Tree": ("Tree", "VegetationMisc"),
    "SignSymbol": ("SignSymbol", "Misc_Text", "TrafficLight"),
    "Fence": ("Fence",),
    "Car": ("Car", "SUVPickupTruck", "Truck_Bus", "Train", "OtherMoving"),
    "Pedestrian": ("Pedestrian", "Child", "CartLuggagePram", "Animal"),
    "Bicyclist": ("Bicyclist", "MotorcycleScooter"),
}
"""The eleven classes, and which of the 32 each is made of."""
CLASSES = tuple(GROUPS)
STILLS, LABELS = "701_StillsRaw_full", "LabeledApproved_full"


@dataclass(frozen=True)
class ColourEntry:
    """A picture, its map of colours or numbers, and the class of each colour or number."""

    path: Path
    label_map: Path
    table: tuple[tuple[int, int], ...]
    """(colour as one number, class)"""


def open_camvid(root: Path, split: str) -> Scenes:
    """The pictures of a split with label maps of eleven classes.

    Args:
        root: CamVid's folder.
        split: train, val or test.
    """
    for name in SPLITS.get(split, (split,)):
        if (root / f"{name}annot").is_dir():
            classes, table = table_of([*CLASSES, "void"])
            return pair_up(root / name, root / f"{name}annot", classes, table)
    if (root / LABELS).is_dir():
        table = _colours(root / "label_colors.txt")
        return _scenes(root / STILLS, root / LABELS, "_L", table, _listed(root, split), split)
    if (root / "codes.txt").is_file():
        names = (root / "codes.txt").read_text().split()
        table = tuple((number, group_of(name)) for number, name in enumerate(names))
        return _scenes(root / "images", root / "labels", "_P", table, _held_out(root, split), split)
    if any(root.glob("*annot")):
        raise ValueError(f"{root} has no split '{split}': looked for {split}annot")
    raise ValueError(f"{root} is no CamVid: looked for {split}annot, {LABELS} and codes.txt")


def group_of(name: str) -> int:
    """The number of the class that one of the 32 belongs to; IGNORED for Void.

    >>> group_of("LaneMkgsDriv"), group_of("Void")
    (3, 255)
    """
    return next((index for index, parts in enumerate(GROUPS.values()) if name in parts), IGNORED)


def _colours(path: Path) -> tuple[tuple[int, int], ...]:
    if not path.is_file():
        raise ValueError(f"{path} is not there: it tells the colour of each class")
    table = []
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) >= 4 and all(word.isdigit() for word in words[:3]):
            red, green, blue = map(int, words[:3])
            table.append(((red * 256 + green) * 256 + blue, group_of(words[3])))
    return tuple(table)


def _listed(root: Path, split: str) -> set[str]:
    for name in SPLITS.get(split, (split,)):
        path = root / f"{name}.txt"
        if path.is_file():
            return {Path(line.split()[0]).stem for line in path.read_text().splitlines() if line.strip()}
    raise ValueError(f"{root} does not say which pictures are '{split}': write their names to {split}.txt")


def _held_out(root: Path, split: str) -> set[str]:
    held = {Path(line).stem for line in (root / "valid.txt").read_text().split()}
    every = {path.stem for path in (root / "images").iterdir() if path.suffix.lower() in PICTURES}
    return every - held if split == "train" else held & every


def _scenes(
    pictures: Path, maps: Path, ending: str, table: tuple[tuple[int, int], ...], names: set[str], split: str
) -> Scenes:
    found = [path for path in sorted(pictures.rglob("*.png")) if path.stem in names]
    entries = [ColourEntry(path, maps / f"{path.stem}{ending}.png", table) for path in found]
    return Scenes(entries, read_colours, CLASSES, f"{pictures} ({split})", frozenset({"label_map"}))


def read_colours(entry: ColourEntry) -> tuple[Image.Image, Target]:
    """Picture and label map of an entry."""
    with Image.open(entry.label_map) as file:
        pixels = np.asarray(file.convert("RGB") if file.mode == "RGB" else file).astype(np.int64)
    codes = pixels if pixels.ndim == 2 else (pixels[..., 0] * 256 + pixels[..., 1]) * 256 + pixels[..., 2]  # (H, W)
    return Image.open(entry.path), Target(label_map=_classes(torch.from_numpy(codes), entry))


def _classes(codes: Tensor, entry: ColourEntry) -> Tensor:
    """Codes (H, W) as classes (H, W)."""
    found = torch.full(codes.shape, IGNORED, dtype=torch.uint8)
    for code, label in entry.table:
        found[codes == code] = label
    return found
