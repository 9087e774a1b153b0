"""What all fuzzers share: how many cases they make, a limit of time for each, and the counts at the end.

HOSTILE_CASES=20000 raises the number for every fuzzer, HOSTILE_SEED=7 makes others. Each case is made from the seed and
its own number alone, so that a failure can be made again.
"""

import contextlib
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

TALLIES: dict[str, Counter[str]] = defaultdict(Counter)


class Hang(BaseException):
    """A case took longer than it may; no handler of errors catches it."""


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> int:
    """How many cases a fuzzer makes: its own small number, or HOSTILE_CASES."""
    own = getattr(request, "param", 150)
    return int(os.environ.get("HOSTILE_CASES", own))


@pytest.fixture(scope="session")
def seed() -> int:
    """What the cases are made from."""
    return int(os.environ.get("HOSTILE_SEED", 0))


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Counter[str]:
    """How often each outcome was seen, printed at the end of the run."""
    return TALLIES[request.node.originalname]


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The counts by fuzzer and outcome."""
    for name, counts in TALLIES.items():
        told = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
        terminalreporter.write_line(f"{name}: {sum(counts.values())} cases: {told}")
