"""A file that changes is opened anew while the old model goes on answering, and takes its place when it is ready."""

import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from .servable import Servable

log = logging.getLogger(__name__)
Stamp = tuple[int, int, int]
LONGEST_END = 10.0
"""Seconds that the end of a service waits for a file that is being opened."""


@dataclasses.dataclass
class Watched:
    """A model that lies in a file. Make it before the file is opened: changes since then are seen.

    Attributes:
        name: Of the model.
        path: The file.
        open: Opens it as it is now, ready to answer.
        stamp: Of the file when this was made.
    """

    name: str
    path: Path
    open: Callable[[], Servable]
    stamp: Stamp | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.stamp = stamp_of(self.path)


def stamp_of(path: Path) -> Stamp | None:
    """What changes when a file does: time, size and place on the disk; None while there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Reloader:
    """Looks at files every few seconds, in a thread of its own.

    A file is opened when it has changed and two looks in a row saw the same: it is not being written any more. One that
    cannot be opened is told to the log, and the model before it stays.

    Args:
        watched: The files.
        put: Takes a model that was opened; called in the reloader's thread, and may take its time.
        seconds: Between two looks.
        note: Told the name of each model and whether its file could be opened.
    """

    def __init__(
        self,
        watched: Sequence[Watched],
        put: Callable[[Servable], None],
        seconds: float,
        note: Callable[[str, bool], None] = lambda name, fine: None,
    ) -> None:
        self.watched, self.put, self.seconds, self.note = watched, put, seconds, note
        self.served = {each.name: each.stamp for each in watched}
        self.seen = dict(self.served)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="leanformer-reloader", daemon=True)
        if watched:
            self._thread.start()

    def look(self) -> None:
        """Look at all files once."""
        for each in self.watched:
            before, now = self.seen[each.name], stamp_of(each.path)
            self.seen[each.name] = now
            if now is not None and now == before and now != self.served[each.name]:
                self.served[each.name] = now
                self._reload(each)

    def close(self) -> None:
        """Look no more; a file that is being opened is waited for, but not for minutes."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(LONGEST_END)

    def _work(self) -> None:
        while not self._stop.wait(self.seconds):
            self.look()

    def _reload(self, each: Watched) -> None:
        try:
            self.put(each.open())
        except Exception as error:  # whatever is wrong with the file, the model before it goes on answering
            log.error("%s changed but is not served: %s", each.path, error)
            self.note(each.name, False)
        else:
            self.note(each.name, True)
