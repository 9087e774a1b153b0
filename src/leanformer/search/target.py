"""What is asked of `lean`, and how the job is to be done."""

import math
from dataclasses import dataclass

from ..train import Recipe
from .cost import Place


@dataclass(frozen=True)
class Target:
    """What is asked for: exactly one of the three.

    Attributes:
        speedup: times as fast as the teacher's own optimised form.
        latency: seconds a batch.
        max_drop: points of accuracy (of agreement, without labels) that may be lost at most.
    """

    speedup: float | None = None
    latency: float | None = None
    max_drop: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("speedup", "latency", "max_drop") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one target: speedup, latency or max_drop; given: {', '.join(given) or 'none'}")
        if self.speedup is not None and not 1 <= self.speedup < math.inf:
            raise ValueError(f"speedup is {self.speedup}; give a number of 1 or more, such as 2")
        if self.latency is not None and not 0 < self.latency < math.inf:
            raise ValueError(f"latency is {self.latency}; give a time above 0, such as '1.5ms'")
        if self.max_drop is not None and not 0 <= self.max_drop <= 100:
            raise ValueError(f"max_drop is {self.max_drop}; give points from 0 to 100, such as 0.5")

    def budget(self, teacher: float) -> float:
        """Seconds a batch that the lean model may take; infinite where only the loss counts."""
        if self.speedup is not None:
            return teacher / self.speedup
        return self.latency if self.latency is not None else math.inf


def seconds_of(latency: str | float) -> float:
    """A time written as people write it.

    Args:
        latency: seconds, or a number with its unit: s, ms or us.

    >>> seconds_of("1.5ms"), seconds_of(0.25)
    (0.0015, 0.25)
    """
    if isinstance(latency, int | float):
        return float(latency)
    units = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
    for unit, factor in units.items():
        number = latency.strip().removesuffix(unit).strip()
        if latency.strip().endswith(unit) and number.replace(".", "", 1).isdigit():
            return float(number) * factor
    raise ValueError(f"latency '{latency}' is no time; write it as 1.5ms, 800us or 0.02s")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the job is done; see `lean`."""

    target: Target
    place: Place
    runtime: str = "torch"
    methods: tuple[str, ...] | None = None
    sizes: bool = True
    choosing: int = 256
    judging: int = 2000
    evaluations: int = 160
    minutes_of_search: float = 6.0
    epochs: int | None = None
    minutes: float | None = None
    train: bool = True
    recipe: Recipe | None = None
    seed: int = 0
