"""What was measured is remembered in one file, so that it is measured once on a machine."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core import environment, versions, write_atomically


def memory_path() -> Path:
    """The file: `optimize.json` in the folder LEANFORMER_CACHE, by default ~/.cache/leanformer."""
    return Path(environment("LEANFORMER_CACHE", str(Path.home() / ".cache" / "leanformer"))) / "optimize.json"


def chip_name(device: torch.device) -> str:
    """The kind of device: a GPU's name, or "cpu".

    >>> chip_name(torch.device("cpu"))
    'cpu'
    """
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def key_of(*facts: Any) -> str:
    """A short name for facts and for the versions of what computes here.

    >>> key_of("a") == key_of("a") != key_of("b")
    True
    """
    return hashlib.sha256(json.dumps([facts, versions()], default=str).encode()).hexdigest()[:32]


def described(module: nn.Module) -> str:
    """A module in words: what it prints, and the numbers and names that it holds beside that, as those of its heads.

    >>> described(nn.Identity())
    'Identity() {}'
    """
    held: dict[str, dict[str, Any]] = {}
    for path, each in module.named_modules():
        told = {name: value for name, value in vars(each).items() if _tells(name, value)}
        held |= {path: told} if told else {}
    return f"{module!r} {held}"


def _tells(name: str, value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_tells(name, each) for each in value)
    return name != "training" and not name.startswith("_") and isinstance(value, bool | int | float | str)


def recall(key: str) -> dict[str, Any] | None:
    """What was remembered under this name, or None."""
    return _all().get(key)


def remember(key: str, value: dict[str, Any]) -> None:
    """Add an entry; where the file cannot be written, the next search only costs its time again."""
    path = memory_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {**_all(), key: value}
        write_atomically(path, lambda name: Path(name).write_text(json.dumps(known, indent=1)))
    except (OSError, ValueError):
        return


def _all() -> dict[str, Any]:
    try:
        known = json.loads(memory_path().read_text())
    except (OSError, json.JSONDecodeError):
        return {}
    return known if isinstance(known, dict) else {}
