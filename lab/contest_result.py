"""What a contest finds: a row for each lean model, with all forms that were timed in the same run."""

from dataclasses import asdict, dataclass, field
from typing import Any

OPTIMISED, FP8, TORCHAO = "optimised", "fp8", "torchao's fp8"
TORCH = "torch"
"""The runtime in which `lf.optimize` works."""


@dataclass(frozen=True)
class Contest:
    """One lean model beside its backbone; a model that could not be made or run says why in `failed`."""

    label: str
    backbone: str
    batch: int
    size: int
    dtype: str
    runtime: str = TORCH
    forms: dict[str, float] = field(default_factory=dict)
    """Form → images a second: 'backbone eager', 'backbone compiled', …, 'backbone optimised', and the lean model's
    'eager', 'compiled', 'optimised', 'fp8', "torchao's fp8, compiled"."""
    spread: dict[str, float] = field(default_factory=dict)
    """Form → half the range of its repeats over their median."""
    mac_ratio: float | None = None
    """MACs of the backbone over those of the lean model."""
    over_timm: float | None = None
    over_timm_spread: float | None = None
    over_own: float | None = None
    over_own_spread: float | None = None
    fp8_over_timm: float | None = None
    steps: tuple[str, ...] = ()
    """What `lf.optimize` did to the lean model."""
    backbone_steps: tuple[str, ...] = ()
    errors: dict[str, float] = field(default_factory=dict)
    """Form → error of its outputs against float32, as a share of their norm: 'optimised', and 'fp8' if asked for."""
    missing: dict[str, str] = field(default_factory=dict)
    """Form that was asked for beside the others → why it is not there."""
    failed: str = ""

    @property
    def share(self) -> float | None:
        """How much of the saved arithmetic is saved time."""
        return None if self.over_own is None or self.mac_ratio is None else self.over_own / self.mac_ratio

    @property
    def fastest_of_timm(self) -> float:
        """Images a second of timm's fastest form."""
        return max(rate for form, rate in self.forms.items() if is_timms(form))

    def row(self) -> dict[str, Any]:
        """The contest as a row of a result file."""
        return asdict(self) | {"share": self.share}


def is_timms(form: str) -> bool:
    """Whether a form is the backbone as timm has it: eager or compiled, not made fast by this library or exported.

    >>> [is_timms(form) for form in ("backbone compiled, graph", "backbone optimised", "compiled")]
    [True, False, False]
    """
    return form.startswith(("backbone eager", "backbone compiled"))
