"""A limit of time for one case of a fuzzer."""

import contextlib
import signal
from collections.abc import Iterator


class Hang(BaseException):
    """A case took longer than it may; no handler of errors catches it."""


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Within the context, more than so many seconds end in `Hang`."""

    def stop(*_: object) -> None:
        raise Hang(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
