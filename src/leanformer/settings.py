"""How a training run is carried out; here, because the command line shows it before anything heavy is imported."""

import dataclasses
from typing import Annotated, Any, Literal

from .fields import Count, Share, Within, check_fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is carried out; only `seed` and `calibrate` are meant to change what is learnt.

    >>> Settings(device="cpu").replace(accumulate=2).accumulate
    2
    """

    seed: Annotated[int, Within(-(2**63), 2**63 - 1)] = 0
    device: str | None = None
    """cpu, cuda, …; the fastest there is by default."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    compile: bool = False
    accumulate: Count = 1
    """Micro-batches an update: the same update with less memory."""
    shard: bool = False
    """Spread weights, gradients and optimizer state over the processes (FSDP2) instead of copying them to each."""
    sync_bn: bool = False
    """Batch norms take their statistics over the batches of all processes instead of each over its own."""
    workers: Annotated[int, Within(0, 1024)] | None = None
    """Processes that read image files; by default as many as there are cores. 0: read in the process itself."""
    log_every: Count = 10
    save_every: Count | None = None
    """Updates between checkpoints; an epoch by default."""
    evaluate_every: Annotated[int, Within(0, 10**9)] = 1
    """Epochs between evaluations; the last one is always evaluated. 0: only images given as val, at start and end."""
    evaluation_batch_size: Count | None = None
    """Images at a time in evaluations; by default 8 on a CPU and else 256."""
    nonfinite: Literal["stop", "skip"] = "stop"
    """What to do about a loss that is not finite. Skipping waits for the device at every update."""
    damage_limit: Share = 0.01
    """Share of the images that may be unreadable."""
    tensorboard: bool = False
    max_updates: Count | None = None
    """Stop early, after so many updates, with the learning rates of the whole run."""
    calibrate: Annotated[int, Within(0, 10**6)] = 512
    """Images to fit the methods' new modules on before a student that starts from its teacher is trained; 0: none."""
    allow_remote: bool = False
    """Read shards through pipes and URLs, which run commands and reach the network; never taken from a run folder."""
    quiet: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def replace(self, **changes: Any) -> "Settings":
        """A copy with other settings; an unknown one is refused."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"there is no setting '{name}'; settings: {', '.join(known)}")
        return dataclasses.replace(self, **changes)
