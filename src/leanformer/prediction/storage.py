"""Files by name, wherever they lie: on this machine, or behind an address that fsspec knows (s3://, gs://, memory://…)."""

import functools
import os
from collections.abc import Iterator
from typing import Any

from fsspec.core import url_to_fs
from timm.utils import natural_key

from ..core import one_line

WILD = "*?["


def is_remote(name: str) -> bool:
    """Whether a name is an address rather than a path on this machine.

    >>> is_remote("s3://bucket/cat.jpg"), is_remote("file:///tmp/cat.jpg"), is_remote("photos/cat.jpg")
    (True, False, False)
    """
    return "://" in name and not name.startswith(("file://", "local://"))


def locate(name: str) -> tuple[Any, str]:
    """The file system of fsspec that holds a file, and the file's path there.

    Args:
        name: A path or an address.

    Raises:
        ValueError: The kind of address is unknown, or the package for it is missing.
    """
    try:
        return url_to_fs(name)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{name} cannot be reached: {error}") from error


def read_bytes(name: str, start: int | None = None, stop: int | None = None) -> bytes:
    """The bytes of a file, or those from `start` to `stop`.

    Args:
        name: A path or an address.
        start: The first byte; None for the beginning.
        stop: The byte after the last; None for the end.
    """
    if start is None and not is_remote(name):
        path = local_path(name)
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe would wait for its writer for ever
            raise OSError("not a plain file")
        with open(path, "rb") as file:
            return file.read()
    files, path = locate(name)
    return files.cat_file(path, start=start, end=stop)


def local_path(name: str) -> str:
    """The path of a file on this machine; a remote one is copied to a temporary place, once."""
    return _copied(name) if is_remote(name) else str(locate(name)[1]) if "://" in name else name


@functools.cache
def _copied(name: str) -> str:
    import fsspec

    return fsspec.open_local(f"simplecache::{name}")  # type: ignore[return-value]


def find(name: str) -> list[str]:
    """The files that a name stands for, in natural order: those below a folder, those a pattern matches, or itself.

    Args:
        name: A path, an address, or a pattern with * ? [ ].

    Raises:
        ValueError: There is no such file, folder or match.
    """
    files, path = locate(name)
    try:
        if files.isfile(path):  # also where its name looks like a pattern
            return [name]
        if any(mark in path for mark in WILD) and not files.exists(path):
            found = [each for each in files.glob(path) if not files.isdir(each)]
        elif files.isdir(path):
            found = files.find(path) if is_remote(name) else list(_walk(path, ()))
        elif files.exists(path):
            raise ValueError(f"{name} is neither a plain file nor a folder")
        else:
            raise ValueError(f"{name} does not exist")
    except OSError as error:
        raise ValueError(f"{name} cannot be listed: {error.strerror or error}") from error
    if not found:
        raise ValueError(f"no file is at {name}")
    return sorted(_as_given(files, found, name), key=natural_key)


def _as_given(files: Any, found: list[str], name: str) -> list[str]:
    """Names as the user would write them: addresses for what is remote, relative paths where one was given."""
    if is_remote(name):
        return [files.unstrip_protocol(each) for each in found]
    if "://" in name or os.path.isabs(name):
        return found
    return [os.path.relpath(each) for each in found]


def _walk(folder: str, above: tuple[str, ...]) -> Iterator[str]:
    """Files below a folder; links are followed, but not in circles. Hidden files and folders are left out."""
    real = os.path.realpath(folder)
    if real in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(entry.path, (*above, real))
            else:
                yield entry.path


def reason(error: BaseException) -> str:
    """What an error says, on one line of at most 300 characters.

    >>> reason(OSError(2, "No such file or directory", "a.jpg"))
    'No such file or directory'
    """
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return one_line(said)[:300] or type(error).__name__


def stamp(name: str) -> str:
    """A text that changes when a file does: its name, size and time of change, where they are known."""
    if not is_remote(name):
        try:
            found = os.stat(local_path(name))
        except (OSError, ValueError):  # there is no such file, or cannot be
            return name
        return f"{name} {found.st_size} {found.st_mtime_ns}"
    files, path = locate(name)
    info = files.info(path)
    changed = next((info[key] for key in ("mtime", "LastModified", "last_modified", "updated") if key in info), "")
    return f"{name} {info.get('size')} {changed}"
