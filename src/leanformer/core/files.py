"""Files that a user names: whether one is there and can be read, told in one line before it is opened."""

import os
from pathlib import Path


def check_file(path: str | os.PathLike[str], what: str = "") -> Path:
    """The path of a plain file that is there and can be read.

    Args:
        path: The file.
        what: Words that the error begins with.

    Raises:
        ValueError: It is not there, is a folder, a pipe or a device, or may not be read.

    >>> check_file("nothing.pth")
    Traceback (most recent call last):
    ValueError: nothing.pth does not exist
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise ValueError(f"{what}{path} is a folder; give a file")
        if not path.exists():
            raise ValueError(f"{what}{path} does not exist")
        if not path.is_file():  # opening a pipe would wait for ever
            raise ValueError(f"{what}{path} is not a plain file")
        with open(path, "rb"):
            return path
    except OSError as error:
        raise ValueError(f"{what}{path} cannot be read: {error.strerror or error}") from error
