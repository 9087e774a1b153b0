"""A run's checkpoint: one file with a checksum, written whole or not at all, and the one before it kept.

    write checkpoint.next → rename checkpoint to checkpoint.previous → rename checkpoint.next to checkpoint
    file = what torch.save wrote | 16 bytes of MARK | SHA-256 of all bytes before it

A process that dies anywhere in between leaves at least one whole file; a file that changed by a single bit gives way to
the one before it. Reading executes nothing from the file.
"""

import hashlib
import io
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..core import write_atomically

FORMAT = 2
NAMES = ("checkpoint.pt", "checkpoint.previous.pt")
UPCOMING, DAMAGED = "checkpoint.next.pt", "checkpoint.damaged.pt"
MARK = b"leanformer state"
END = len(MARK) + hashlib.sha256().digest_size
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}")
"""Names of the half-written files that `write_atomically` renames when they are whole."""


def write_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Write the state as the folder's newest checkpoint.

    Args:
        folder: The run folder.
        state: Tensors and plain values by name.

    >>> write_checkpoint(Path("runs/x"), {"update": 10})  # doctest: +SKIP
    """
    newest, previous = (folder / name for name in NAMES)
    upcoming = write_atomically(folder / UPCOMING, lambda name: _save({"format": FORMAT, **state}, name))
    if newest.exists():
        newest.replace(previous)
    return upcoming.replace(newest)


def read_checkpoint(folder: Path, tell: Callable[[str], Any] | None = None) -> dict[str, Any] | None:
    """The newest whole checkpoint of a folder, or None where there is none.

    Args:
        folder: The run folder.
        tell: Called with one line for each checkpoint that is damaged when an older one is whole.

    Raises:
        ValueError: There are checkpoints, but none is whole.

    >>> read_checkpoint(Path("no such folder"))
    """
    problems = []
    for name in NAMES:
        if not (folder / name).exists():
            continue
        try:
            state = _load(folder / name)
        except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{name}: {str(error).partition(chr(10))[0]}")
            continue
        for problem in problems if tell else ():
            tell(f"{problem}; going on from {name}, which was written after update {state['update']}")  # type: ignore[misc]
        return state
    if problems:
        raise ValueError(f"no checkpoint in {folder} can be read; {'; '.join(problems)}")
    return None


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half-written; only the process that holds the folder may do this.

    Args:
        folder: The run folder.
    """
    for path in folder.iterdir():
        if path.name == UPCOMING or TEMPORARY.fullmatch(path.name):
            path.unlink()


def set_aside(folder: Path) -> None:
    """Rename a damaged newest checkpoint: as the previous one it would take the place of the only whole one.

    Args:
        folder: A run folder whose newest checkpoint `read_checkpoint` found damaged and whose previous one it read.
    """
    (folder / NAMES[0]).replace(folder / DAMAGED)


def _save(state: dict[str, Any], name: str) -> None:
    try:
        torch.save(state, name)
    except RuntimeError as error:  # torch's writer hides what the system said
        raise OSError(f"{str(error).splitlines()[0]} (is the disk full?)") from error
    with open(name, "r+b") as file:
        digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
        file.seek(0, io.SEEK_END)
        file.write(MARK + digest)


def _load(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        problem = _problem(file)
    if problem:
        raise ValueError(problem)
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not {"format", "update"} <= state.keys():
        raise ValueError("holds no state of a run")
    if state["format"] != FORMAT:
        raise ValueError(f"has format {state['format']}, and this leanformer reads {FORMAT}: use the one that wrote it")
    return state


def _problem(file: BinaryIO) -> str | None:
    """What is wrong with the bytes of a checkpoint; None where they are those that were written."""
    size = os.fstat(file.fileno()).st_size
    if size <= END:
        return f"is cut off: it has {size} bytes"
    file.seek(size - END)
    mark, told = file.read(len(MARK)), file.read()
    if mark != MARK:
        return "is cut off, damaged, or no checkpoint with a checksum"
    file.seek(0)
    digest = hashlib.sha256()
    left = size - END
    while left:
        part = file.read(min(left, 1 << 20))
        if not part:
            return "was cut off while it was read"
        digest.update(part)
        left -= len(part)
    return None if digest.digest() == told else "is damaged: its checksum does not match"
