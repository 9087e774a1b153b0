"""A run folder from the first file to the last: held by one process, cleaned, and taken back if nothing was learnt."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator

from .checkpoint import read_checkpoint, remove_leftovers, set_aside
from .file_lock import locked

if TYPE_CHECKING:
    from .loop import Run

OWN = (
    "run.json", "student.safetensors", "*.teacher.safetensors", "log.jsonl", "log.csv", "checkpoint*.pt", "tensorboard"
)  # fmt: skip
"""What a run writes before it has learnt anything."""


@dataclass
class Held:
    """What was found in a run folder, and the run that works in it."""

    state: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    run: Run | None = None


@contextlib.contextmanager
def hold(folder: Path | None, resume: bool, accelerator: Accelerator) -> Iterator[Held]:
    """Work in a run folder within the context; an error before the first update leaves nothing of a new run behind.

    Args:
        folder: The run folder; None for a run without one.
        resume: Whether a run found there goes on; otherwise it is refused.
        accelerator: Tells which process is the first; that one makes, holds and cleans the folder.

    Raises:
        ValueError: Another process works in the folder, it holds a run already, or no checkpoint in it is whole.
    """
    if folder is None or not accelerator.is_main_process:
        accelerator.wait_for_everyone()  # until the first process has cleaned the folder
        yield Held(None if folder is None else _state(folder, resume, []))
        return
    made = _made(folder)
    new, held = not (folder / "run.json").exists(), Held()
    try:
        with locked(folder):
            try:
                held.state = _state(folder, resume, held.notes)
                remove_leftovers(folder)
                if held.notes:
                    set_aside(folder)
                accelerator.wait_for_everyone()
                yield held
            except BaseException:
                if new and held.state is None and (held.run is None or not held.run.update):
                    _discard(folder)
                raise
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()


def _made(folder: Path) -> list[Path]:
    """Make a folder; returns it and those above it that were not there, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the run folder {folder}: {error.strerror}") from error
    return missing


def _state(folder: Path, resume: bool, notes: list[str]) -> dict[str, Any] | None:
    state = read_checkpoint(folder, notes.append)
    if state is not None and not resume:
        raise ValueError(f"{folder} already holds a run; resume it, or choose another output folder")
    return state


def _discard(folder: Path) -> None:
    for pattern in OWN:
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
