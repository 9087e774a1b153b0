"""Load on a service: so many clients at once, each sending one image after the other, for so many seconds.

Each client keeps its connection, as browsers and proxies do. A request fails if its answer is not 200.
"""

import dataclasses
import http.client
import io
import json
import random
import threading
import time
import urllib.parse
from collections import Counter
from typing import Any

from PIL import Image

PICTURES = ((224, 224), (320, 240), (500, 375), (375, 500))
"""Widths and heights of the images that are sent."""


@dataclasses.dataclass
class Load:
    """What the clients saw: the latency of each answered request in seconds, and how often what went wrong."""

    clients: int
    seconds: float = 0.0
    latencies: list[float] = dataclasses.field(default_factory=list)
    failures: Counter[str] = dataclasses.field(default_factory=Counter)

    def row(self) -> dict[str, Any]:
        """The figures as one row of a result file.

        >>> Load(1, 2.0, [0.1, 0.2, 0.3]).row()["latency_p50"]
        0.2
        """
        ordered = sorted(self.latencies)

        def at(share: float) -> float | None:
            return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 5) if ordered else None

        return {
            "clients": self.clients,
            "seconds": round(self.seconds, 2),
            "requests": len(ordered) + sum(self.failures.values()),
            "failed": sum(self.failures.values()),
            "failures": dict(self.failures),
            "throughput": round(len(ordered) / self.seconds, 2) if self.seconds else 0.0,
            "latency_p50": at(0.5),
            "latency_p90": at(0.9),
            "latency_p99": at(0.99),
            "latency_max": ordered[-1] if ordered else None,
        }


def put_load(url: str, *, clients: int = 64, seconds: float = 60.0, requests: int | None = None) -> Load:
    """Send images from `clients` threads for `seconds`, or until `requests` were sent if that comes first.

    >>> put_load("http://127.0.0.1:8000", clients=4, seconds=1).failures  # doctest: +SKIP
    Counter()
    """
    if clients < 1 or seconds <= 0:
        raise ValueError(f"{clients} clients for {seconds} s are no load; give at least 1 and more than 0")
    pictures, load, lock = _pictures(), Load(clients), threading.Lock()
    left, start = [requests], time.perf_counter()
    end = start + seconds

    def another() -> bool:
        with lock:
            if left[0] is not None:
                left[0] -= 1
            return time.perf_counter() < end and (left[0] is None or left[0] >= 0)

    def client(number: int) -> None:
        line, picks = _connect(url), random.Random(number)
        while another():
            sent = time.perf_counter()
            wrong = _send(line, picks.choice(pictures))
            with lock:
                if wrong is None:
                    load.latencies.append(time.perf_counter() - sent)
                else:
                    load.failures[wrong] += 1
        line.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.seconds = time.perf_counter() - start
    return load


def health(url: str) -> dict[str, Any]:
    """What the service says of itself; a `ValueError` if there is none."""
    line = _connect(url)
    try:
        line.request("GET", "/healthz")
        return dict(json.loads(line.getresponse().read()))
    except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
        raise ValueError(f"no leanformer service answers at {url}: {error}") from error
    finally:
        line.close()


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{url}' is not the address of a service; one looks like http://127.0.0.1:8000")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        return kind(parts.hostname, parts.port, timeout=120)
    except http.client.InvalidURL as error:
        raise ValueError(f"'{url}' is not the address of a service: {error}") from error


def _send(line: http.client.HTTPConnection, picture: bytes) -> str | None:
    """Send one image; what went wrong, or None."""
    try:
        line.request("POST", "/classify", picture, {"Content-Type": "image/jpeg"})
        answer = line.getresponse()
        told = answer.read()
        if answer.status != 200:
            return str(answer.status)
        return None if json.loads(told)["images"][0]["classes"] else "empty answer"
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        line.close()  # the next request opens it again
        return type(error).__name__


def _pictures() -> list[bytes]:
    """JPEG files of smooth random colours, the same in every run."""
    files, draws = [], random.Random(0)
    for size in PICTURES:
        few = Image.frombytes("RGB", (16, 16), draws.randbytes(16 * 16 * 3))
        file = io.BytesIO()
        few.resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files
