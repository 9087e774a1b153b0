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

    A library that is interrupted may report that as a failure of its own: after a signal every error is an interrupt.

    >>> with sigterm_as_interrupt():
    ...     before = signal.getsignal(signal.SIGTERM)
    >>> before is signal.getsignal(signal.SIGTERM)
    False
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = False

    def interrupt(number: int, frame: FrameType | None) -> Any:
        nonlocal caught
        caught = True
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a caller's own handler stays
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    except Exception as error:
        if caught:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: it was not set by Python
