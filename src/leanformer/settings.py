"""How a training run is carried out; here, because the command line shows it before anything heavy is imported."""

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is carried out; none of these is meant to change what is learnt.

    >>> Settings(device="cpu").replace(accumulate=2).accumulate
    2
    """

    seed: int = 0
    device: str | None = None
    """cpu, cuda, …; the fastest there is by default."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    compile: bool = False
    accumulate: int = 1
    """Micro-batches an update: the same update with less memory."""
    shard: bool = False
    """Spread weights, gradients and optimizer state over the processes (FSDP2) instead of copying them to each."""
    sync_bn: bool = False
    """Batch norms take their statistics over the batches of all processes instead of each over its own."""
    workers: int | None = None
    """Processes that read image files; by default as many as there are cores. 0: read in the process itself."""
    log_every: int = 10
    save_every: int | None = None
    """Updates between checkpoints; an epoch by default."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last one is always evaluated. 0: never."""
    evaluation_batch_size: int | None = None
    """Images at a time in evaluations; by default 8 on a CPU and else 256."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """What to do about a loss that is not finite. Skipping waits for the device at every update."""
    damage_limit: float = 0.01
    """Share of the images that may be unreadable."""
    tensorboard: bool = False
    max_updates: int | None = None
    """Stop early, after so many updates, with the learning rates of the whole run."""
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, known in (("precision", ("no", "bf16", "fp16")), ("nonfinite", ("stop", "skip"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {' or '.join(known)}, not '{getattr(self, name)}'")
        for name in ("accumulate", "log_every", "evaluation_batch_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    def replace(self, **changes: Any) -> "Settings":
        """A copy with other settings; an unknown one is refused."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"there is no setting '{name}'; settings: {', '.join(known)}")
        return dataclasses.replace(self, **changes)
