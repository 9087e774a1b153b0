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
from typing import Any

import torch
from torch import nn

from ..core import save, versions, write_atomically
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


def read_run(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What `run.json` of a run folder says.

    >>> read_run("runs/x")["recipe"]["epochs"]  # doctest: +SKIP
    30
    """
    path = Path(folder) / "run.json"
    if not path.is_file():
        raise ValueError(f"{folder} is no run folder: it has no run.json")
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON whole or not at all."""
    write_atomically(path, lambda name: Path(name).write_text(json.dumps(content, indent=1) + "\n"))


def machine() -> str:
    """Processor or accelerator, in words."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{platform.machine()} CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
