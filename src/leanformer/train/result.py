"""What came out of a run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ..core import save
from .evaluation import Evaluation
from .runs import write_json


@dataclass
class Result:
    """What came out of `fit`: the trained model, its moving average, their evaluations, and the log by epochs."""

    model: nn.Module
    ema: nn.Module | None = None
    evaluation: Evaluation | None = None
    ema_evaluation: Evaluation | None = None
    epochs: list[dict[str, Any]] = field(default_factory=list)
    updates: int = 0
    finished: bool = True
    seconds: float = 0.0
    folder: Path | None = None
    start: dict[str, Any] | None = None
    """The teacher that the model started from, the calibration before the first update, and the figures after it."""

    def write(self) -> None:
        """Put models and figures into the run folder."""
        if self.folder is None:
            return
        save(self.model, self.folder / "model.safetensors")
        if self.ema is not None:
            save(self.ema, self.folder / "ema.safetensors")
        found = {"val": self.evaluation, "ema": self.ema_evaluation}
        figures = {name: {**e.summary(), "images": e.images} for name, e in found.items() if e is not None}
        counts = {"updates": self.updates, "seconds": round(self.seconds, 1)}
        start = {} if self.start is None else {"start": self.start}
        write_json(self.folder / "result.json", {**figures, **start, **counts})
