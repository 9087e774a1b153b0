"""Energy of a repeated call, where the driver tells the power drawn."""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

SECONDS = 0.6
"""How long the call is repeated: the driver renews its power reading some ten times a second."""


def joules(call: Callable[[], Any], seconds_a_call: float, device: torch.device) -> float | None:
    """Joules one call takes, from the mean power while it is repeated; None without a power reading.

    >>> joules(lambda: None, 1e-3, torch.device("cpu")) is None
    True
    """
    if reading(torch.cuda.power_draw, device) is None:
        return None
    readings: list[float] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.02):
            milliwatts = reading(torch.cuda.power_draw, device)
            if milliwatts is not None:
                readings.append(milliwatts / 1e3)

    thread = threading.Thread(target=sample, daemon=True)
    end = time.perf_counter() + SECONDS
    thread.start()
    while time.perf_counter() < end:
        for _ in range(max(1, int(0.05 / seconds_a_call))):
            call()
        torch.cuda.synchronize(device)
    done.set()
    thread.join()
    settled = readings[len(readings) // 2 :]
    return sum(settled) / len(settled) * seconds_a_call if settled else None


def reading(read: Callable[[torch.device], float], device: torch.device) -> float | None:
    """What the driver tells of a GPU, read by a function such as torch.cuda.power_draw; None where it does not.

    >>> reading(torch.cuda.power_draw, torch.device("cpu")) is None
    True
    """
    if device.type != "cuda":
        return None
    try:
        return read(device)
    except (RuntimeError, ImportError, ModuleNotFoundError, AttributeError):
        return None
