"""The plans that a search left in its folder."""

import json
from pathlib import Path
from typing import Any


def found_plans(folder: Path, families: int = 4) -> dict[str, dict[str, Any]]:
    """Name → plan for all that the search left: the best, the best of other families, and those made by hand."""
    wanted: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("lean *.json")):
        found = json.loads(path.read_text())
        champions: dict[str, dict[str, Any]] = {}
        target = found["target"].removesuffix(" times")
        for told in found["best"]:
            champions.setdefault(told["family"], told)
        for index, (family, told) in enumerate(list(champions.items())[:families]):
            wanted[f"lean {target}{f', {family}' if index else ''}"] = told
        wanted |= {f"{name}, {target}": told for name, told in found["hand"].items()}
    return wanted
