"""What is asked of a model, and what of it its task knows."""

import dataclasses

import torch
from torch import nn

from ..core.optimised import plain_of
from ..speed import Optimized
from ..tasks import dense
from ..tasks.fitting import task_of
from ..train.evaluation import default_batch
from .answers import HALVES

WORTH_OPTIMISING = 20_000
"""Pictures from which on a GPU makes up for the minutes that the search for the fastest form takes."""
TOP = 5
"""Classes that a row names unless told otherwise."""
ONLY = {
    "top": ("classification",), "probabilities": ("classification",), "embed": ("classification",),
    "kept": ("classification",), "crop": ("classification",), "optimized": ("classification",),
    "score": ("detection",),
}  # fmt: skip
"""Setting → the tasks that know it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is asked of a model; what of it changes rows is part of a run's manifest."""

    top: int = TOP
    probabilities: bool = False
    embed: str | None = None
    kept: bool = False
    classes: tuple[str, ...] | None = None
    batch_size: int | None = None
    device: str | None = None
    dtype: str | None = None
    optimized: bool | None = None
    crop: float | None = None
    score: float | None = None

    def __post_init__(self) -> None:
        if self.top < 0:
            raise ValueError(f"top must be 0 or more, not {self.top}")
        if not (self.asks_classes or self.embed or self.kept):
            raise ValueError("top=0 leaves out the classes, and nothing else is asked for; add embed, for example")
        if self.embed is not None and self.embed not in HALVES:
            raise ValueError(f"embed must be {' or '.join(HALVES)}, not '{self.embed}'")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.crop is not None and not 0 < self.crop <= 1:
            raise ValueError(f"crop must be above 0 and at most 1, not {self.crop}")
        if self.score is not None and not 0 <= self.score < 1:
            raise ValueError(f"score must be at least 0 and below 1, not {self.score}")
        if self.dtype not in (None, "float32", "bfloat16", "float16"):
            raise ValueError(f"unknown dtype '{self.dtype}'; known: float32, bfloat16, float16")

    @property
    def asks_classes(self) -> bool:
        """Whether rows name classes."""
        return self.top > 0 or self.probabilities

    def wanted(self) -> torch.device:
        """The device that was named, else the fastest of this machine; one that was named may be on other machines."""
        name = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            return torch.device(name)
        except RuntimeError as error:
            raise ValueError(f"there is no device '{name}'") from error

    def on(self) -> torch.device:
        """The same device, tried out on this machine."""
        device = self.wanted()
        try:
            return torch.zeros(1, device=device).device
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"there is no device '{device}' here") from error

    def resolved(self, model: nn.Module, rows: int) -> "Settings":
        """The same with nothing left open, but for the device: whoever computes it computes the same rows."""
        device, task = self.wanted(), task_name(model)
        usual = default_batch if task == "classification" else dense.default_batch
        batch = self.batch_size or tuned_batch(model) or usual(device)
        dtype = self.dtype or ("bfloat16" if device.type == "cuda" else "float32")
        worth = task == "classification" and device.type == "cuda" and rows >= WORTH_OPTIMISING and not self.kept
        return dataclasses.replace(
            self,
            batch_size=min(batch, rows) if tuned_batch(model) is None else batch,
            dtype=dtype,
            optimized=worth if self.optimized is None else self.optimized,
            score=plain_of(model).score_threshold if task == "detection" and self.score is None else self.score,
        )


def tuned_batch(model: nn.Module) -> int | None:
    """The batch size that an optimised model was made for; None for a plain model."""
    return model.choice.batch if isinstance(model, Optimized) else None


def task_name(model: nn.Module) -> str:
    """What a model is made for: classification, detection or segmentation."""
    return task_of(plain_of(model)).name


def refuse_unfit(model: nn.Module, settings: Settings) -> None:
    """Refuse settings that mean nothing for the model's task.

    Args:
        model: Any model.
        settings: What is asked of it.
    """
    task, plain = task_name(model), Settings()
    for name, tasks in ONLY.items():
        if task not in tasks and getattr(settings, name) not in (getattr(plain, name), False):
            raise ValueError(f"{name} is for {' and '.join(tasks)}, but this is a model for {task}; leave it out")
