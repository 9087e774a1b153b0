"""SIGTERM ends a run as Ctrl-C does: what is done is written down first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Within the context SIGTERM raises KeyboardInterrupt; outside of the main thread signals stay as they are.

    >>> with sigterm_as_interrupt():
    ...     before = signal.getsignal(signal.SIGTERM)
    >>> before is signal.getsignal(signal.SIGTERM)
    False
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: it was not set by Python
