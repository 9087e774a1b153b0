"""What else the machine does while it measures: CPU seconds a second that other programs use.

    load = (busy time of all CPUs - CPU time of this process) / time

Threads of one core share its arithmetic units, and all cores share memory: a program on another CPU can slow a
measurement by a third although it never takes the CPU away. Speed-ups, taken turn by turn, hardly change.
"""

import os
import time
from pathlib import Path

LOUD = 0.1
"""From here on other programs are mentioned."""


class LoadByOthers:
    """Counts from its creation on; `share()` is how many CPUs others used since, None where the system does not tell.

    >>> share = LoadByOthers().share()
    >>> share is None or share >= 0
    True
    """

    def __init__(self) -> None:
        self.start = _marks()

    def share(self) -> float | None:
        """CPUs that other programs used since this was made."""
        now = _marks()
        if self.start is None or now is None or now[2] <= self.start[2]:
            return None
        busy, own, elapsed = (b - a for a, b in zip(self.start, now))
        return max(0.0, (busy - own) / elapsed)


def load_message(share: float | None) -> str | None:
    """A line for the reader of a measurement; None where others used too little to mention.

    Args:
        share: CPUs that other programs used.

    >>> load_message(0.0), load_message(None)
    (None, None)
    >>> load_message(1.5)
    'other programs used 1.5 CPUs meanwhile: throughputs may be low, speed-ups are taken turn by turn'
    """
    if share is None or share < LOUD:
        return None
    return f"other programs used {share:.1f} CPUs meanwhile: throughputs may be low, speed-ups are taken turn by turn"


def _marks() -> tuple[float, float, float] | None:
    """Seconds that all CPUs were busy, that this process computed, and on the clock."""
    try:
        user, nice, system, _, _, interrupt, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    except (OSError, ValueError):
        return None
    busy = (user + nice + system + interrupt + soft) / os.sysconf("SC_CLK_TCK")
    return busy, time.process_time(), time.perf_counter()
