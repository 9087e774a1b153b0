"""Which records a source is.

cat.jpg, s3://bucket/photos/            a picture, all pictures below a folder (or pack, shard, table there)
"photos/*.jpg", list.txt                what a pattern matches, what a text file names line by line
set.npz, pack:PREFIX                    packs
shards/*.tar, wds/FOLDER                WebDataset shards
table.parquet                           pictures as bytes or paths in a column
hfds/FOLDER                             what `datasets` saved to disk
tensors, open pictures, lists of both kinds of names
"""

import glob
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..data.kinds import Arrays, Files
from .containers import HuggingFace, Shards, Tables, is_hugging_face, is_picture, open_hugging_face
from .records import Opened, Packs, Paths, Pictures, Pixels, Records
from .storage import WILD, find, is_remote, read_bytes, reason

LISTS = (".txt", ".lst")
CONTAINERS: dict[str, str] = {".npz": "packs", ".tar": "shards", ".parquet": "tables"}
Source = str | os.PathLike[str] | Tensor | np.ndarray | Arrays | Files | Sequence[Any] | Records


def open_records(source: Source, split: str | None = None, column: str | None = None) -> Records:
    """The pictures that a source names, in their order, checked to be some.

    Args:
        source: A name as the head of this file lists them, a list of paths or pictures, pixels uint8 (n, C, H, W), or
            any object with the methods of `Records`.
        split: Which split of a Hugging Face data set, or which of the folders in a folder.
        column: Which column of a table holds the pictures.

    Raises:
        ValueError: There are no pictures, or the source has no such split or column.

    >>> len(open_records(torch.zeros(4, 3, 8, 8, dtype=torch.uint8)))
    4
    """
    if split is not None and not isinstance(source, str | os.PathLike):
        raise ValueError(f"a {type(source).__name__} has no splits; leave split out")
    records = _open(source, split, column)
    if column is not None and not isinstance(records, Tables | HuggingFace):
        raise ValueError(f"{records.name} is no table, so it has no column '{column}'; leave column out")
    if not len(records):
        raise ValueError(f"{records.name} holds no pictures")
    return records


def _open(source: Any, split: str | None, column: str | None) -> Records:
    if isinstance(source, str | os.PathLike):
        return _named(os.fspath(source), split, column)
    if isinstance(source, Arrays):
        return Pixels(source.name, source.images)
    if isinstance(source, Files):
        return Opened(source)
    if isinstance(source, np.ndarray):
        return Pixels("the array", torch.from_numpy(source))
    if isinstance(source, Tensor):
        return Pixels("the tensor", source)
    if isinstance(source, Image.Image):
        return Pictures("the picture", [source])
    if isinstance(source, tuple) and source and isinstance(source[0], Tensor):  # images and labels, as data sets are
        return Pixels("the tensors", source[0])
    if isinstance(source, list | tuple):
        return _list(source)
    if all(hasattr(source, name) for name in ("read", "key", "fingerprint", "__len__")):
        return source
    raise ValueError(f"pictures cannot be taken from a {type(source).__name__}; give a path, a list of paths or pixels")


def _list(items: Sequence[Any]) -> Records:
    if all(isinstance(item, Image.Image) for item in items):
        return Pictures("the list of pictures", list(items))
    odd = next((item for item in items if not isinstance(item, str | os.PathLike)), None)
    if odd is not None:
        raise ValueError(f"a list of pictures holds paths or open pictures alone, not also a {type(odd).__name__}")
    return Paths("the list of paths", [os.fspath(item) for item in items])


def _named(name: str, split: str | None, column: str | None) -> Records:
    name = name.removeprefix("images:")
    if not name:
        raise ValueError("the source has no name; give a path, a pattern or an address")
    folder = name.removeprefix("hfds/") if name.startswith("hfds/") and not os.path.exists(name) else name
    if folder != name or (not is_remote(name) and is_hugging_face(name)):
        if not is_hugging_face(folder):
            raise ValueError(f"{folder} is not a data set that `datasets` saved to disk: it has no state.json")
        return open_hugging_face(folder, split, column)
    if split is not None:
        name = _folder_of(name, split)
    if name.startswith("pack:"):
        return Packs(name, _packs(name.removeprefix("pack:")))
    if name.startswith("wds/") and not os.path.exists(name):
        return _of_kind(name, [each for each in find(name.removeprefix("wds/")) if each.endswith(".tar")], column)
    if name.lower().endswith(LISTS) and not any(mark in name for mark in WILD):
        return _text_list(name)
    return _of_kind(name, find(name), column)


def _folder_of(name: str, split: str) -> str:
    """The folder of a split within a folder."""
    folder = os.path.join(name, split)
    if not os.path.isdir(folder):
        raise ValueError(
            f"{name} is neither a Hugging Face data set nor a folder with the folder '{split}' in it; leave split out"
        )
    return folder


def _packs(pattern: str) -> list[str]:
    start = os.path.join(pattern, "") if os.path.isdir(pattern) else pattern
    found = sorted(glob.glob(pattern)) if not os.path.isdir(pattern) else []
    found = found or sorted(glob.glob(f"{glob.escape(start)}*.npz"))
    if not found:
        raise ValueError(f"no pack is at {pattern}; looked for {start}*.npz")
    return found


def _text_list(name: str) -> Paths:
    find(name)  # says what is wrong where there is no such file
    try:
        lines = read_bytes(name).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is not a text file with one path a line: {reason(error)}") from error
    return Paths(name, [line.strip() for line in lines if line.strip() and not line.startswith("#")])


def _of_kind(name: str, files: list[str], column: str | None) -> Records:
    """Records of files that are all pictures, or all of one kind of container; other files are passed over."""
    kinds: dict[str, list[str]] = {"pictures": [path for path in files if is_picture(path)]}
    for ending, kind in CONTAINERS.items():
        kinds[kind] = [path for path in files if path.lower().endswith(ending)]
    present = [kind for kind, paths in kinds.items() if paths]
    if not present:
        raise ValueError(
            f"{name} holds no pictures: {_endings(files)}; pictures, packs (.npz), .tar and .parquet are read"
        )
    if len(present) > 1:
        counts = " and ".join(f"{len(kinds[kind])} {kind}" for kind in present)
        raise ValueError(f"{name} holds {counts}; name one kind with a pattern, for example 'FOLDER/*.tar'")
    make: dict[str, Callable[[str, list[str]], Records]] = {
        "pictures": Paths,
        "packs": Packs,
        "shards": Shards,
        "tables": lambda name, paths: Tables(name, paths, column),
    }
    return make[present[0]](name, kinds[present[0]])


def _endings(files: Iterable[str]) -> str:
    found = sorted({os.path.splitext(path)[1] or "no ending" for path in files})
    return f"there are files with {', '.join(found[:5])}"
