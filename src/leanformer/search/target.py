"""What is asked of `lean`, and how the job is to be done."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..train import Recipe
from .clock import Place

KINDS = ("speedup", "latency", "max_drop", "curve")


@dataclass(frozen=True)
class Target:
    """What is asked for: exactly one of the four.

    Attributes:
        speedup: times as fast as the teacher's own optimised form.
        latency: seconds a batch.
        max_drop: points of accuracy (of agreement, without labels) that may be lost at most.
        curve: several speed-ups, each with a plan of its own.
    """

    speedup: float | None = None
    latency: float | None = None
    max_drop: float | None = None
    curve: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one target of {', '.join(KINDS)}; given: {', '.join(given) or 'none'}")
        if self.speedup is not None and not 1 <= self.speedup < math.inf:
            raise ValueError(f"speedup is {self.speedup}; give a number of 1 or more, such as 2")
        if self.latency is not None and not 0 < self.latency < math.inf:
            raise ValueError(f"latency is {self.latency}; give a time above 0, such as '1.5ms'")
        if self.max_drop is not None and not 0 <= self.max_drop <= 100:
            raise ValueError(f"max_drop is {self.max_drop}; give points from 0 to 100, such as 0.5")
        if self.curve is not None:
            wrong = [each for each in self.curve if not 1 <= each < math.inf]
            names = {f"{each:g}" for each in self.curve}  # those of the files
            if wrong or len(names) != len(self.curve) or not self.curve:
                raise ValueError(f"curve is {self.curve}; give different speed-ups of 1 or more, such as 1.5 2 3")

    def points(self) -> tuple["Target", ...]:
        """The target itself, or one for each speed-up of the curve, the gentlest first.

        >>> [point.speedup for point in Target(curve=(3.0, 1.5)).points()]
        [1.5, 3.0]
        """
        return (self,) if self.curve is None else tuple(Target(speedup=each) for each in sorted(self.curve))

    def budget(self, teacher: float) -> float:
        """Seconds a batch that the lean model may take; infinite where only the loss counts."""
        if self.speedup is not None:
            return teacher / self.speedup
        return self.latency if self.latency is not None else math.inf


def target_of(
    speedup: float | None, latency: str | float | None, max_drop: float | None, curve: Sequence[float] | None
) -> Target:
    """The target as a user writes it; see `Target`. No speed-ups at all are no curve."""
    seconds = None if latency is None else seconds_of(latency)
    return Target(speedup, seconds, max_drop, tuple(curve) if curve is not None and len(curve) else None)


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
    evaluations: int = 240
    minutes_of_search: float = 5.0
    epochs: int | None = None
    minutes: float | None = None
    train: bool = True
    shared: bool = False
    recipe: Recipe | None = None
    export: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs is not None and self.minutes is not None:
            raise ValueError("epochs and minutes both say how long to train; give one of them")
        if self.epochs is not None and self.recipe is not None:
            raise ValueError("epochs and the recipe both say how long to train; give one of them")
        for name in ("epochs", "minutes"):
            given = getattr(self, name)
            if given is not None and not 0 < given < math.inf:
                raise ValueError(f"{name} is {given}; give a number above 0, or train=False")
            if given is not None and not self.train:
                raise ValueError(f"{name} says how long to train, and train=False not to; give one of them")
        for name in ("choosing", "evaluations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give a number of 1 or more")
        if self.runtime == "macs" and self.target.latency is not None:
            raise ValueError("the runtime macs counts and times nothing; give a speedup, or another runtime")
        if self.shared and self.target.curve is None:
            raise ValueError("shared weights serve several speeds; give them with a curve, such as curve=(1.5, 2)")
