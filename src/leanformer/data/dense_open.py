"""The data set of scenes that a source names: by a word before a colon, or by what lies in its folder.

coco:FOLDER  voc:FOLDER  maps:FOLDER  pets:FOLDER  pets_species:FOLDER  pets_heads:FOLDER  camvid:FOLDER
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from .dense import Scenes
from .dense_camvid import LABELS, open_camvid
from .dense_coco import open_coco
from .dense_maps import MAPS, open_maps
from .dense_pets import open_pets
from .dense_voc import open_voc

Wanted = Literal["boxes", "masks", "label_map"]
SceneSource = str | os.PathLike[str] | Scenes
WORDS = {"boxes": "boxes", "masks": "masks of its objects", "label_map": "label maps"}


def _boxes_or_maps(function: Callable[..., Scenes], **options: str) -> Callable[[Path, str, Wanted], Scenes]:
    return lambda root, split, wanted: function(root, split, **options, label_maps=wanted == "label_map")


def _as_it_is(function: Callable[[Path, str], Scenes]) -> Callable[[Path, str, Wanted], Scenes]:
    return lambda root, split, wanted: function(root, split)


FORMATS: dict[str, Callable[[Path, str, Wanted], Scenes]] = {
    "coco": lambda root, split, wanted: open_coco(root, split, masks=wanted == "masks"),
    "voc": _boxes_or_maps(open_voc),
    "pets": _boxes_or_maps(open_pets),
    "pets_species": _boxes_or_maps(open_pets, kind="species"),
    "pets_heads": _boxes_or_maps(open_pets, kind="heads"),
    "camvid": _as_it_is(open_camvid),
    "maps": _as_it_is(open_maps),
}


def open_scenes(source: SceneSource, split: str, wanted: Wanted) -> Scenes:
    """Pictures with boxes, masks or label maps.

    Args:
        source: A folder, with or without the name of its format before it, or scenes that are open already.
        split: train or val.
        wanted: What the targets must hold.
    """
    if isinstance(source, Scenes):
        found = source
    else:
        word, colon, rest = str(source).partition(":")
        named = bool(colon) and word in FORMATS
        root = Path(rest if named else source)
        if not root.is_dir():
            raise ValueError(f"the data folder {root} does not exist")
        found = FORMATS[word if named else format_of(root)](root, split, wanted)
    if wanted not in found.has:
        known = " and ".join(WORDS[each] for each in sorted(found.has))
        raise ValueError(f"{found.name} has {known}, but {WORDS[wanted]} are needed")
    return found.without_masks() if wanted == "boxes" and "masks" in found.has else found


def format_of(root: Path) -> str:
    """The format of a folder, by what lies in it.

    Args:
        root: The folder.
    """
    if (root / "annotations" / "trimaps").is_dir():
        return "pets"
    if any((root / "annotations").glob("instances_*.json")):
        return "coco"
    if (root / "JPEGImages").is_dir():
        return "voc"
    if (root / LABELS).is_dir() or (root / "codes.txt").is_file() or any(root.glob("*annot")):
        return "camvid"
    if any((root / maps).is_dir() for maps in MAPS) or any(root.glob("*/images")):
        return "maps"
    raise ValueError(
        f"{root} is none of the formats {', '.join(FORMATS)} by what lies in it; write its format before it"
    )
