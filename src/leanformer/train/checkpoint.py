"""A run's checkpoint: one file, written whole or not at all, and the one before it kept.

    write checkpoint.next → rename checkpoint to checkpoint.previous → rename checkpoint.next to checkpoint

A process that dies anywhere in between leaves at least one whole file. Reading executes nothing from the file.
"""

import pickle
from pathlib import Path
from typing import Any

import torch

from ..core import write_atomically

FORMAT = 1
NAMES = ("checkpoint.pt", "checkpoint.previous.pt")


def write_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Write the state as the folder's newest checkpoint.

    >>> write_checkpoint(Path("runs/x"), {"update": 10})  # doctest: +SKIP
    """
    newest, previous = (folder / name for name in NAMES)
    upcoming = write_atomically(folder / "checkpoint.next.pt", lambda name: _save({"format": FORMAT, **state}, name))
    if newest.exists():
        newest.replace(previous)
    return upcoming.replace(newest)


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest whole checkpoint of a folder, or None where there is none.

    >>> read_checkpoint(Path("no such folder"))
    """
    problems = []
    for name in NAMES:
        if (folder / name).exists():
            try:
                state = torch.load(folder / name, map_location="cpu", weights_only=True)
            except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError) as error:
                problems.append(f"{name}: {str(error).splitlines()[0]}")
                continue
            if state["format"] > FORMAT:
                raise ValueError(f"{folder / name} was written by a newer leanformer: update this one")
            return state
    if problems:
        raise ValueError(f"no checkpoint in {folder} can be read; {'; '.join(problems)}")
    return None


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for path in folder.glob(".checkpoint*"):
        path.unlink()


def _save(state: dict[str, Any], name: str) -> None:
    try:
        torch.save(state, name)
    except RuntimeError as error:  # torch's writer hides what the system said
        raise OSError(f"{str(error).splitlines()[0]} (is the disk full?)") from error
