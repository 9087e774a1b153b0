"""Counters and histograms in the text format that Prometheus reads.

name_bucket{le="b"} counts the values ≤ b, for growing b; name_sum and name_count give the mean
"""

import bisect
import threading
from collections.abc import Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Counter:
    """A number that grows, one for each value of its label.

    >>> requests = Counter("requests_total", "Requests.", "status")
    >>> requests.add("200")
    >>> print(requests.text())
    # HELP requests_total Requests.
    # TYPE requests_total counter
    requests_total{status="200"} 1
    """

    def __init__(self, name: str, help: str, label: str | None = None) -> None:
        self.name, self.help, self.label = name, help, label
        self.values: dict[str, int] = {} if label else {"": 0}
        self._lock = threading.Lock()

    def add(self, value: str = "", amount: int = 1) -> None:
        with self._lock:
            self.values[value] = self.values.get(value, 0) + amount

    def text(self) -> str:
        with self._lock:
            values = sorted(self.values.items())
        lines = [f'{self.name}{{{self.label}="{v}"}} {n}' if self.label else f"{self.name} {n}" for v, n in values]
        return "\n".join([f"# HELP {self.name} {self.help}", f"# TYPE {self.name} counter", *lines])


class Histogram:
    """How often values fell into growing ranges.

    >>> batches = Histogram("batch", "Sizes.", (1, 2))
    >>> batches.see(2)
    >>> batches.text().splitlines()[2:]
    ['batch_bucket{le="1"} 0', 'batch_bucket{le="2"} 1', 'batch_bucket{le="+Inf"} 1', 'batch_sum 2', 'batch_count 1']
    """

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name, self.help, self.bounds = name, help, tuple(bounds)
        self.counts, self.total = [0] * (len(self.bounds) + 1), 0.0
        self._lock = threading.Lock()

    def see(self, value: float) -> None:
        with self._lock:
            self.counts[bisect.bisect_left(self.bounds, value)] += 1
            self.total += value

    def text(self) -> str:
        with self._lock:
            counts, total = list(self.counts), self.total
        lines, below = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} histogram"], 0
        for bound, count in zip([*(f"{b:g}" for b in self.bounds), "+Inf"], counts):
            below += count
            lines.append(f'{self.name}_bucket{{le="{bound}"}} {below}')
        return "\n".join([*lines, f"{self.name}_sum {total:.9g}", f"{self.name}_count {below}"])


class Metrics:
    """All that a service counts.

    >>> "leanformer_images_total 0" in Metrics().text()
    True
    """

    def __init__(self) -> None:
        self.requests = Counter("leanformer_requests_total", "Requests to /classify.")
        self.failures = Counter("leanformer_failures_total", "Refused or failed requests, by HTTP status.", "status")
        self.images = Counter("leanformer_images_total", "Images classified.")
        self.batches = Histogram("leanformer_batch_size", "Images that went through the model together.", SIZES)
        self.seconds = Histogram("leanformer_request_seconds", "Time from request to answer.", SECONDS)

    def text(self) -> str:
        parts = (self.requests, self.failures, self.images, self.batches, self.seconds)
        return "\n".join(part.text() for part in parts) + "\n"
