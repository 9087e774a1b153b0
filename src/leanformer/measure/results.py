"""Results as files: one JSON a run, always with the hardware, the versions, the commit and the command.

    {"kind": "bench", "when": …, "command": …, "commit": …, "versions": {…}, "hardware": {…}, "rows": [{…}, …]}

Tables and figures are rendered from these files and from nothing else.
"""

import datetime
import functools
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

from ..core import environment, versions, write_atomically
from ..core.files import check_file


def hardware(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What a measurement ran on.

    Args:
        device: the device that computed.

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
            "driver": _driver(),
        }
    else:
        found["threads"] = torch.get_num_threads()
    return found


def record(
    kind: str, rows: Sequence[dict[str, Any]], device: torch.device | str = "cpu", **more: Any
) -> dict[str, Any]:
    """One run's result in the one schema.

    Args:
        kind: which command made it, as "bench" or "suite gpu".
        rows: one object a measured model.
        device: the device that computed.
        more: what the kind needs beside its rows: data, epochs, seed, ….

    >>> sorted(record("bench", []))
    ['command', 'commit', 'hardware', 'kind', 'rows', 'versions', 'when']
    """
    return {
        "kind": kind,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command_line(),
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
    return environment("LEANFORMER_COMMIT") or _commit_of_code()


def command(arguments: Sequence[str]) -> str:
    """A command as a reader would give it: names of files without the folders of this machine.

    Args:
        arguments: the words of the command line, as in sys.argv.

    >>> command(["/here/lab/__main__.py", "suite", "gpu"])
    'python -m lab suite gpu'
    >>> command(["/opt/bin/leanformer", "eval", "--data", "pack:/data/tiny imagenet", "--output", "../there/a.json"])
    "leanformer eval --data 'pack:tiny imagenet' --output a.json"
    """
    program = Path(arguments[0]).name
    if program == "__main__.py":  # python -m PACKAGE
        package = Path(arguments[0]).parent.name
        program = "leanformer" if package in ("leanformer", "cli") else f"python -m {package}"
    named = [re.sub(r"(?<![^:=])(?:/|(?:\.\./)+)(?:[^/]+/)*", "", argument) for argument in arguments[1:]]
    return f"{program} {shlex.join(named)}".strip()


def command_line() -> str:
    """The command that runs, as a reader would give it; LEANFORMER_COMMAND where another one started this process.

    >>> command_line()  # doctest: +SKIP
    'leanformer bench deit_small_patch16_224'
    """
    return environment("LEANFORMER_COMMAND") or command(sys.argv)


def choose(names: Iterable[str], only: str) -> list[str]:
    """The names that contain one of some texts; a text that is a whole name means that one alone.

    Args:
        names: all names, in their order.
        only: the texts, parted by |; empty for all names.

    Raises:
        ValueError: where no name is left.

    >>> choose(["small", "small, fused", "tiny 0.5", "base"], "small | 0.5")
    ['small', 'tiny 0.5']
    """
    names, texts = list(names), [text.strip() for text in only.split("|")]
    parts = [text for text in texts if text not in names]
    chosen = [name for name in names if name in texts or any(part in name for part in parts)]
    if not chosen:
        raise ValueError(f"no name contains '{only}'; there are: " + "; ".join(dict.fromkeys(names)))
    return chosen


def write_result(result: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write a result file, whole or not at all.

    Args:
        result: what `record` made.
        path: the file; its folder is made where it is missing.

    >>> write_result(record("bench", []), "results/bench.json")  # doctest: +SKIP
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from error
    return write_atomically(path, lambda name: Path(name).write_text(json.dumps(result, indent=1) + "\n"))


def read_results(folder: str | os.PathLike[str] = "results", kind: str | None = None) -> list[dict[str, Any]]:
    """All results in a folder, oldest first.

    Args:
        folder: where the JSON files are.
        kind: only those of this kind.

    >>> read_results("no such folder")
    []
    """
    found = [json.loads(path.read_text()) | {"file": path.name} for path in sorted(Path(folder).glob("*.json"))]
    return sorted((r for r in found if kind in (None, r.get("kind"))), key=lambda r: r.get("when", ""))


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of one result file.

    Args:
        path: the file.

    Raises:
        ValueError: where it cannot be read or is no result file.

    >>> read_rows("results/bench.json")[0]["model"]  # doctest: +SKIP
    """
    try:
        found = json.loads(check_file(path, "the result file ").read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot read the result file {path}: {error}") from error
    rows = found.get("rows") if isinstance(found, dict) else None
    if not rows or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} is no result file: it has no rows")
    return rows


def rows_to_resume(path: str | os.PathLike[str] | None, about: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that an earlier, interrupted run of the same command left; none where there is no file yet.

    Args:
        path: the result file; None where nothing is written.
        about: what the file must say beside its rows to be of the same run, as {"model": …, "data": …}.

    Raises:
        ValueError: for the file of another run, which must not be written over.

    >>> rows_to_resume("no such file.json", {"kind": "sweep"})
    []
    """
    if path is None or not Path(path).is_file():
        return []
    try:
        earlier = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is there already and holds no result: {error}; give another name") from error
    if not isinstance(earlier, dict) or any(earlier.get(key) != value for key, value in about.items()):
        raise ValueError(f"{path} holds another run's result; give another name")
    return read_rows(path)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


@functools.cache
def _commit_of_code() -> str | None:
    """Asked once a process, as every row of a result names it; all files of the package count."""
    git = ("git", "-C", str(Path(__file__).parents[1]))
    head = _ask(*git, "rev-parse", "HEAD")
    return f"{head}+" if head and _ask(*git, "status", "--porcelain", "-uno", ".") else head


@functools.cache
def _driver() -> str | None:
    return _ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _ask(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def flat(nested: dict[str, Any]) -> dict[str, Any]:
    """Values of inner objects beside the outer ones, with both names.

    Args:
        nested: a row whose values may be objects themselves.

    >>> flat({"val": {"top1": 80.0}, "seconds": 2.0})
    {'val top1': 80.0, 'seconds': 2.0}
    """
    out = {}
    for key, value in nested.items():
        out |= {f"{key} {k}": v for k, v in flat(value).items()} if isinstance(value, dict) else {key: value}
    return out
