"""Results as files: one JSON a run, always with the hardware, the versions, the commit and the command.

    {"kind": "bench", "when": …, "command": …, "commit": …, "versions": {…}, "hardware": {…}, "rows": [{…}, …]}

Tables and figures are rendered from these files and from nothing else.
"""

import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core import versions, write_atomically


def hardware(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What a measurement ran on.

    >>> hardware("cpu")["device"]
    'cpu'
    """
    device = torch.device(device)
    found: dict[str, Any] = {
        "device": device.type,
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "os": platform.system(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
            "driver": _ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }
    else:
        found["threads"] = torch.get_num_threads()
    return found


def record(
    kind: str, rows: Sequence[dict[str, Any]], device: torch.device | str = "cpu", **more: Any
) -> dict[str, Any]:
    """One run's result in the one schema; `more` adds what the kind needs (data, epochs, seed, …).

    >>> sorted(record("bench", []))
    ['command', 'commit', 'hardware', 'kind', 'rows', 'versions', 'when']
    """
    return {
        "kind": kind,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": os.environ.get("LEANFORMER_COMMAND") or command(sys.argv),
        "commit": commit(),
        "versions": {**versions(), "python": platform.python_version()},
        "hardware": hardware(device),
        **more,
        "rows": list(rows),
    }


def commit() -> str | None:
    """The commit of the code that runs, with + where its files differ from it; None where it is in no repository.

    >>> commit()  # doctest: +SKIP
    '43bf36c…'
    """
    git = ("git", "-C", str(Path(__file__).parent))
    head = os.environ.get("LEANFORMER_COMMIT") or _ask(*git, "rev-parse", "HEAD")
    changed = head and "LEANFORMER_COMMIT" not in os.environ and _ask(*git, "status", "--porcelain", "-uno", ".")
    return f"{head}+" if changed else head


def command(arguments: Sequence[str]) -> str:
    """A command as a reader would give it: names of files without the folders of this machine.

    >>> command(["/opt/bin/leanformer", "eval", "--data", "pack:/data/tiny imagenet", "--output", "../there/a.json"])
    "leanformer eval --data 'pack:tiny imagenet' --output a.json"
    """
    program = Path(arguments[0]).name
    named = [re.sub(r"(?<![^:=])(?:/|(?:\.\./)+)(?:[^/]+/)*", "", argument) for argument in arguments[1:]]
    return shlex.join(["leanformer" if program == "cli.py" else program, *named])


def choose(names: Iterable[str], only: str) -> list[str]:
    """The names that contain one of the texts in `only`, which are parted by |; all where it is empty.

    A text that is a whole name means that one alone.

    >>> choose(["EViT 0.7", "EViT 0.7 + RePa", "RePa 0.5", "SiT"], "EViT 0.7 | 0.5")
    ['EViT 0.7', 'RePa 0.5']
    """
    names, texts = list(names), [text.strip() for text in only.split("|")]
    parts = [text for text in texts if text not in names]
    chosen = [name for name in names if name in texts or any(part in name for part in parts)]
    if not chosen:
        raise ValueError(f"no name contains '{only}'; there are: " + "; ".join(dict.fromkeys(names)))
    return chosen


def write_result(result: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write a result file, whole or not at all.

    >>> write_result(record("bench", []), "results/bench.json")  # doctest: +SKIP
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from error
    return write_atomically(path, lambda name: Path(name).write_text(json.dumps(result, indent=1) + "\n"))


def read_results(folder: str | os.PathLike[str] = "results", kind: str | None = None) -> list[dict[str, Any]]:
    """All results of a kind in a folder, oldest first.

    >>> read_results("no such folder")
    []
    """
    found = [json.loads(path.read_text()) | {"file": path.name} for path in sorted(Path(folder).glob("*.json"))]
    return sorted((r for r in found if kind in (None, r.get("kind"))), key=lambda r: r.get("when", ""))


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of one result file.

    >>> read_rows("results/bench.json")[0]["model"]  # doctest: +SKIP
    """
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot read the result file {path}: {error}") from error
    rows = found.get("rows") if isinstance(found, dict) else None
    if not rows or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} is no result file: it has no rows")
    return rows


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _ask(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def flat(nested: dict[str, Any]) -> dict[str, Any]:
    """Values of inner objects beside the outer ones, with both names.

    >>> flat({"val": {"top1": 80.0}, "seconds": 2.0})
    {'val top1': 80.0, 'seconds': 2.0}
    """
    out = {}
    for key, value in nested.items():
        out |= {f"{key} {k}": v for k, v in flat(value).items()} if isinstance(value, dict) else {key: value}
    return out
