"""What all fuzzers share: how many cases they make, and the counts at the end.

HOSTILE_CASES=20000 raises the number for every fuzzer, HOSTILE_SEED=7 makes others. Each case is made from the seed and
its own number alone, so that a failure can be made again.
"""

import os
from collections import Counter, defaultdict

import pytest


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
def tally() -> Counter[str]:
    """How often each outcome was seen, printed at the end of the run."""
    return Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Send the counts along with the report, which may come from a process of its own."""
    counts = getattr(item, "funcargs", {}).get("tally")
    if call.when == "call" and counts is not None:
        item.user_properties.append(("tally", sorted(counts.items())))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The counts by fuzzer and outcome."""
    tallies: dict[str, Counter[str]] = defaultdict(Counter)
    for reports in terminalreporter.stats.values():
        for report in reports:
            for key, counts in getattr(report, "user_properties", ()):
                if key == "tally" and report.when == "call":
                    tallies[report.nodeid.partition("[")[0]].update(dict(counts))
    for name, counts in sorted(tallies.items()):
        told = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
        terminalreporter.write_line(f"{name}: {sum(counts.values())} cases: {told}")
