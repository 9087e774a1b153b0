"""What was measured is remembered in one file, so that it is measured once on a machine."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from ..core import versions, write_atomically


def memory_path() -> Path:
    """The file: `optimize.json` in the folder LEANFORMER_CACHE, by default ~/.cache/leanformer."""
    return Path(os.environ.get("LEANFORMER_CACHE", Path.home() / ".cache" / "leanformer")) / "optimize.json"


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
