"""What comes out of `lean`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from .plan import Plan


@dataclass
class Lean:
    """What came out of `lean`.

    Attributes:
        model: the lean model, fused, in evaluation mode; of a curve the fastest that met its target, or the fastest.
        plan: what was changed.
        speedup: measured at the end, over the teacher's own optimised form.
        met: whether the target is met as measured; of a curve, whether all are.
        record: everything that plan.json holds.
        folder: the output folder, where one was given.
        files: the files of this model: its checkpoint, and its export where one was asked for.
        curve: one for each speed-up of a curve, the gentlest first; empty where one target was given.
    """

    model: nn.Module
    plan: Plan
    speedup: float
    met: bool
    record: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    files: tuple[Path, ...] = ()
    curve: tuple["Lean", ...] = ()
