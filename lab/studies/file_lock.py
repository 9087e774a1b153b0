"""Several processes, also on several machines with one file system, work off one queue of runs.

A run belongs to the process that holds the lock file in its folder; the system lets go of the lock when the process
ends, however it ends.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # where there are no such locks, one process at a time
    fcntl = None

from leanformer.core import write_atomically

ROW = "row.json"


@contextlib.contextmanager
def file_lock(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Hold a folder for this process alone: True, or False where another process holds it.

    Args:
        folder: made where it is missing.
        wait: wait until no other process holds it, instead of False.

    >>> import tempfile
    >>> with file_lock(Path(tempfile.mkdtemp())) as mine:
    ...     mine
    True
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
        yield True


def write_row(folder: Path, row: dict[str, Any]) -> None:
    """Leave the row of a finished run in its folder."""
    write_atomically(folder / ROW, lambda name: Path(name).write_text(json.dumps(row, indent=1)))


def read_row(folder: Path) -> dict[str, Any] | None:
    """The row of the run in `folder`, or None while it is not finished."""
    path = folder / ROW
    return json.loads(path.read_text()) if path.is_file() else None
