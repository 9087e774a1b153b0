"""Pictures inside other files: WebDataset shards (tar), Parquet tables, and Hugging Face data sets on disk.

All are entered anywhere: a shard by the places of its members, a table by its row groups.
"""

import functools
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .records import Read, digest, in_memory
from .storage import locate, read_bytes, reason, stamp

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".ppm", ".tif", ".tiff")
"""Endings of files that are taken for pictures."""
COLUMNS = ("image", "img", "picture", "jpg", "jpeg", "png", "bytes", "path", "file", "file_name", "filename", "url")
"""Names of columns that hold pictures or their paths, the likeliest first."""
NAMES = ("key", "__key__", "id", "path", "file_name", "filename", "file", "name", "url")
"""Names of columns whose values name a row."""


def is_picture(name: str) -> bool:
    """Whether a file's name ends like that of a picture.

    >>> is_picture("a/Cat.JPG"), is_picture("a/cat.txt")
    (True, False)
    """
    return name.lower().endswith(PICTURES)


@dataclass
class Shards:
    """The pictures in tar files, in the order in which they lie there; rows are named shard/member.

    Args:
        name: What messages call the source.
        paths: The tar files, not compressed.
    """

    name: str
    paths: Sequence[str]
    batched: bool = False
    members: list[str] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        places: list[tuple[int, int, int]] = []
        for number, path in enumerate(self.paths):
            for member in _members(path):
                self.members.append(member.name)
                places.append((number, member.offset_data, member.offset_data + member.size))
        self.places = np.asarray(places, np.int64).reshape(-1, 3)  # (n, 3): shard, first byte, byte after the last

    @property
    def shareable(self) -> bool:
        return not in_memory(self.paths)

    def __len__(self) -> int:
        return len(self.members)

    def key(self, index: int) -> str:
        return f"{self.paths[self.places[index, 0]]}/{self.members[index]}"

    def read(self, index: int) -> bytes:
        number, start, stop = map(int, self.places[index])
        return read_bytes(self.paths[number], start, stop)

    def fingerprint(self) -> str:
        return digest(stamp(path) for path in self.paths)


def _members(path: str) -> list[tarfile.TarInfo]:
    files, inside = locate(path)
    try:
        with files.open(inside, "rb") as file, tarfile.open(fileobj=file, mode="r:") as shard:
            return [member for member in shard if member.isfile() and is_picture(member.name)]
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is not a whole tar file without compression: {reason(error)}") from error


@dataclass
class Tables:
    """The pictures in a column of Parquet files: bytes, paths, or both as Hugging Face writes them.

    Args:
        name: What messages call the source.
        paths: The Parquet files.
        column: The column with the pictures; None: found by its name and type.
    """

    name: str
    paths: Sequence[str]
    column: str | None = None
    batched: bool = False

    def __post_init__(self) -> None:
        groups: list[tuple[int, int, int, int]] = []
        for number, path in enumerate(self.paths):
            footer, first = _footer(path), 0
            for group in range(footer.num_row_groups):
                rows = footer.metadata.row_group(group).num_rows
                groups.append((number, group, first, rows))
                first += rows
        schema = _footer(self.paths[0]).schema_arrow
        self.column = picture_column(schema, self.column, self.paths[0])
        self.naming = next((each for each in NAMES if each in schema.names and each != self.column), None)
        self.groups = np.asarray(groups, np.int64).reshape(-1, 4)  # (groups, 4): file, row group, its first row, rows
        self.starts = np.cumsum([0, *self.groups[:, 3]])  # (groups + 1,)

    @property
    def shareable(self) -> bool:
        return not in_memory(self.paths)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def key(self, index: int) -> str:
        path, group, place, first = self._place(index)
        if self.naming is not None:
            named = _values(path, group, self.naming)[place].as_py()
            if named is not None:
                return str(named)
        held = _values(path, group, self.column or "")[place].as_py()
        inner = held.get("path") if isinstance(held, dict) else held
        return inner if isinstance(inner, str) else f"{path}[{first + place}]"

    def read(self, index: int) -> bytes:
        path, group, place, _ = self._place(index)
        return stored(_values(path, group, self.column or "")[place].as_py(), os.path.dirname(path))

    def fingerprint(self) -> str:
        return digest([*(stamp(path) for path in self.paths), self.column or ""])

    def _place(self, index: int) -> tuple[str, int, int, int]:
        """The file, the row group in it, the row in that group, and the row of the file where the group begins."""
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        file, group, first, _ = map(int, self.groups[number])
        return self.paths[file], group, index - int(self.starts[number]), first


def stored(value: Any, folder: str = "") -> bytes:
    """The bytes of a picture that a table holds as such, as a path, or as Hugging Face's pair of both.

    Args:
        value: What the column has in a row.
        folder: Where relative paths begin, if nothing is there below the current folder.
    """
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("the row has no picture")
    beside = os.path.join(folder, value)
    return read_bytes(beside if "://" not in value and not os.path.exists(value) else value)


def picture_column(schema: Any, asked: str | None, path: str) -> str:
    """The name of the column of an Arrow schema that holds pictures.

    Args:
        schema: The columns of the table.
        asked: The column that the user named; None to look for one.
        path: What messages call the table.
    """
    import pyarrow.types as kinds

    def holds(kind: Any) -> bool:
        if kinds.is_struct(kind):
            return kind.get_field_index("bytes") >= 0
        return any(is_kind(kind) for is_kind in (kinds.is_binary, kinds.is_large_binary, kinds.is_string,
                                                 kinds.is_large_string))  # fmt: skip

    fit = [each.name for each in schema if holds(each.type)]
    if asked is not None:
        if asked not in fit:
            raise ValueError(f"{path} has no column '{asked}' of bytes or paths; it has {', '.join(schema.names)}")
        return asked
    structs = [each.name for each in schema if kinds.is_struct(each.type) and each.name in fit]
    likely = structs + [name for name in COLUMNS if name in fit]
    if not likely:
        raise ValueError(f"{path} has the columns {', '.join(schema.names)}: say which one holds the pictures (column)")
    return likely[0]


def _footer(path: str) -> Any:
    import pyarrow.parquet as parquet

    files, inside = locate(path)
    try:
        return parquet.ParquetFile(files.open(inside, "rb"))
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        raise ValueError(f"{path} is not a Parquet file: {reason(error)}") from error


@functools.lru_cache(maxsize=4)
def _group(path: str, group: int, column: str, process: int) -> Any:
    return _footer(path).read_row_group(group, columns=[column], use_threads=False).column(0)


def _values(path: str, group: int, column: str) -> Any:
    """One column of a row group; the last ones are kept. Files opened before a fork are opened again."""
    return _group(path, group, column, os.getpid())


@dataclass
class HuggingFace:
    """A data set of the package `datasets`, with a column of images.

    Args:
        name: What messages call the source.
        dataset: One split of it, the images not decoded.
        column: The column with the images.
    """

    name: str
    dataset: Any
    column: str
    batched: bool = False
    shareable: bool = True

    def __len__(self) -> int:
        return len(self.dataset)

    def key(self, index: int) -> str:
        held = self.dataset[index][self.column]
        return held["path"] if isinstance(held, dict) and held.get("path") else f"{self.name}[{index}]"

    def read(self, index: int) -> Read:
        return stored(self.dataset[index][self.column])

    def fingerprint(self) -> str:
        return digest([self.name, self.dataset._fingerprint, self.column])


def is_hugging_face(folder: str) -> bool:
    """Whether `save_to_disk` of the package `datasets` wrote this folder."""
    return any((Path(folder) / name).is_file() for name in ("state.json", "dataset_dict.json"))


def open_hugging_face(folder: str, split: str | None, column: str | None) -> HuggingFace:
    """A data set that `save_to_disk` wrote.

    Args:
        folder: Where it lies.
        split: Which of its splits; None where it has one alone.
        column: The column with the images; None: found by its type.
    """
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f"{folder} needs the package datasets; pip install 'leanformer[data]' brings it") from error
    try:
        opened: Any = datasets.load_from_disk(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder} is not a whole Hugging Face data set: {reason(error)}") from error
    if isinstance(opened, datasets.DatasetDict):
        if (split is None and len(opened) > 1) or (split is not None and split not in opened):
            raise ValueError(f"{folder} has the splits {', '.join(map(str, opened))}: say which one (split)")
        opened = opened[split or next(iter(opened))]
    elif split is not None and split != opened.split:
        raise ValueError(f"{folder} has no split '{split}'; it holds one alone, so leave split out")
    images = [name for name, kind in opened.features.items() if isinstance(kind, datasets.Image)]
    chosen = column or (images[0] if images else picture_column(opened.features.arrow_schema, None, folder))
    if chosen not in opened.features:
        raise ValueError(f"{folder} has no column '{chosen}'; it has {', '.join(opened.features)}")
    if chosen in images:
        opened = opened.cast_column(chosen, datasets.Image(decode=False))
    return HuggingFace(folder, opened, chosen)
