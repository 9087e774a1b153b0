"""What may lie in a folder of pictures beside pictures: links that lead in circles, and pipes named like files."""

import os
from pathlib import Path
from typing import Any

from timm.data.readers.reader_image_folder import ReaderImageFolder


def check_links(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder with a link to a folder above it: whoever follows links would walk in circles.

    Args:
        folder: Where to begin; links to folders elsewhere are followed.

    >>> check_links(".")
    """
    _walk(Path(folder), {os.path.realpath(folder)})


def check_plain(reader: Any, index: int) -> None:
    """Raise an `OSError` where an image of a folder is no plain file; a pipe would wait for its writer for ever."""
    if isinstance(reader, ReaderImageFolder) and not os.path.isfile(reader.samples[index][0]):
        raise OSError("not a plain file")


def _walk(folder: Path, above: set[str]) -> None:
    try:
        with os.scandir(folder) as entries:
            inside = [entry.name for entry in entries if entry.is_dir()]
    except OSError as error:
        raise ValueError(f"the folder {folder} cannot be read: {error.strerror or error}") from error
    for name in inside:
        real = os.path.realpath(folder / name)
        if real in above:
            raise ValueError(f"{folder / name} is a link to a folder above it, so the pictures have no end; remove it")
        _walk(folder / name, above | {real})
