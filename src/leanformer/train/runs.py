"""A run folder holds all that a run needs to go on, and all that a reader needs to believe it.

run.json                   recipe, settings, data, seed, command, versions, commit, machine
student.safetensors        the model before training; teacher*.safetensors the teachers, as they were given
log.jsonl, log.csv         every logged update; every epoch
checkpoint.pt              the newest state, checkpoint.previous.pt the one before
model.safetensors          the trained model, ema.safetensors its moving average, result.json the figures
"""

import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import nn

from ..core import save, versions, write_atomically
from .fields import Within, check_fields, check_value, shown
from .recipe import Count, Recipe, Share


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
    """Epochs between evaluations; the last one is always evaluated. 0: never."""
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


def start_run(
    folder: Path,
    student: nn.Module,
    teachers: dict[str, nn.Module],
    recipe: Recipe,
    settings: Settings,
    sources: dict[str, str],
    objective: str,
) -> None:
    """Fill a new run folder with everything but the log and the checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    save(student, folder / "student.safetensors")
    for name, teacher in teachers.items():
        save(teacher, folder / f"{name}.teacher.safetensors")
    write_json(
        folder / "run.json",
        {
            "format": 1,
            "recipe": recipe.to_json(),
            "settings": dataclasses.asdict(settings),
            "data": sources,
            "objective": objective,
            "teachers": sorted(teachers),
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "commit": commit(),
            "versions": {**versions(), "python": platform.python_version()},
            "machine": machine(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
    )


@dataclasses.dataclass(frozen=True)
class RunFile:
    """The types of the entries of `run.json` that a resumed run reads."""

    format: Annotated[int, Within(1, 1)]
    recipe: dict[str, Any]
    settings: dict[str, Any]
    data: dict[str, str]
    objective: str
    teachers: list[str]


def read_run(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What `run.json` of a run folder says, its entries checked to be of their types.

    Args:
        folder: The run folder.

    Raises:
        ValueError: There is no such file, or it is damaged.

    >>> read_run("runs/x")["recipe"]["epochs"]  # doctest: +SKIP
    30
    """
    path = Path(folder) / "run.json"
    if not path.is_file():
        raise ValueError(f"{folder} is no run folder: it has no run.json")
    try:
        run = json.loads(path.read_text())
        check_value("it", run, dict[str, Any])
        names = [field.name for field in dataclasses.fields(RunFile)]
        check_fields(RunFile(**{name: run.get(name) for name in names}))
        for name in run["teachers"]:
            if not name.isidentifier():
                raise ValueError(f"{shown(name)} is no teacher's name")
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return run


def settings_of(run: dict[str, Any], allow_remote: bool = False) -> Settings:
    """The settings in a `run.json`, but for what a file must not decide.

    Args:
        run: What `read_run` told.
        allow_remote: Whether the user allows pipes and URLs now.
    """
    return Settings().replace(**run["settings"]).replace(allow_remote=allow_remote)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON whole or not at all."""
    write_atomically(path, lambda name: Path(name).write_text(json.dumps(content, indent=1) + "\n"))


def commit() -> str | None:
    """The git commit of the working directory, with + where files differ from it; None outside of a repository."""
    try:
        told = [
            subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True).stdout.strip()
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return told[0] + ("+" if told[1] else "")


def machine() -> str:
    """Processor or accelerator, in words."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{platform.machine()} CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
