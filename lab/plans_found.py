"""The plans that a search left in its folder."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

import leanformer as lf
from leanformer.core import parse_method
from leanformer.measure import read_rows
from leanformer.search.plan import Plan


def found_plans(place: Path, families: int = 4) -> dict[str, dict[str, Any]]:
    """Name → plan for all that the search left: the best, the best of other families, and those made by hand.

    Args:
        place: the folder in which the search left them, or a result file that they stand in with their times.
        families: of how many the best is taken from a folder.
    """
    if place.is_file():
        return {row["model"]: row for row in read_rows(place) if not row["model"].startswith("random ")}
    wanted: dict[str, dict[str, Any]] = {}
    for path in sorted(place.glob("lean *.json")):
        found = json.loads(path.read_text())
        champions: dict[str, dict[str, Any]] = {}
        target = found["target"].removesuffix(" times")
        for told in found["best"]:
            champions.setdefault(told["family"], told)
        for index, (family, told) in enumerate(list(champions.items())[:families]):
            wanted[f"lean {target}{f', {family}' if index else ''}"] = told
        wanted |= {f"{name}, {target}": told for name, told in found["hand"].items()}
    return wanted


def build_of(told: dict[str, Any]) -> Callable[[nn.Module], nn.Module]:
    """How a plan's model is made from the teacher; in older files a method stands where others have a plan.

    Args:
        told: what `found_plans` says of it.

    >>> slim = build_of({"method": "sit:at=(1,),keep_ratio=0.5"})
    >>> [spec.name for spec in slim(lf.create("vit", depth=2)).card.methods]
    ['sit']
    """
    if "plan" in told:
        return Plan.from_json(told["plan"]).build
    return functools.partial(_applied, method=told["method"])


def _applied(teacher: nn.Module, method: str) -> nn.Module:
    return lf.apply(teacher, parse_method(method))
