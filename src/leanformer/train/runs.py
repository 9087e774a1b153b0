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
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

from ..core import save, versions, write_atomically
from ..fields import Within, check_fields, check_value, shown
from ..measure.results import commit
from ..settings import Settings
from .recipe import Recipe


def start_run(
    folder: Path,
    student: nn.Module,
    teachers: dict[str, nn.Module],
    recipe: Recipe,
    settings: Settings,
    sources: dict[str, str],
    objective: str,
    task: dict[str, Any] | None = None,
) -> None:
    """Fill a new run folder with everything but the log and the checkpoints."""
    for name, teacher in teachers.items():
        if not hasattr(teacher, "card"):
            raise ValueError(
                f"the teacher '{name}' is a {type(teacher).__name__} that cannot be written to the run folder: make it "
                "with lf.backbones.create_teacher(name, weights), which takes any of timm's, or train without output"
            )
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
            "task": task or {"name": "classification"},
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
    task: dict[str, Any] | None = None
    """Runs of earlier versions have none: they are classification."""


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


def machine() -> str:
    """Processor or accelerator, in words."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{platform.machine()} CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
