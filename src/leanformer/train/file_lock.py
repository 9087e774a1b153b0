"""One process at a time works in a run folder; the system lets go of the lock when the process ends, in any way."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None

NAME = "run.lock"
_held: set[int] = set()
"""Descriptors of the lock files that this process holds."""


def _let_go() -> None:
    """In a child: its copies of the descriptors would hold the locks after the death of its parent."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder, which must exist, within the context.

    Args:
        folder: The run folder.

    Raises:
        ValueError: Another process holds it; its number is told.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with locked(folder):
    ...     [path.name for path in folder.iterdir()]
    ['run.lock']
    """
    path = folder / NAME
    descriptor = _acquire(path)
    _held.add(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        if descriptor in _held:  # not in a child that was forked within the context
            _held.discard(descriptor)
            path.unlink(missing_ok=True)  # while it is still held: whoever opened it meanwhile looks again
            os.close(descriptor)


def _acquire(path: Path) -> int:
    """The descriptor of the file at `path`, locked: the one that lies there now, not one that was removed meanwhile."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror}") from error
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace").strip() or "of an unknown number"
            os.close(descriptor)
            raise ValueError(f"{path.parent} is in use by the process {holder}: wait for it or end it first") from None
        except OSError:  # a file system without locks: better no lock than no run
            return descriptor
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)
