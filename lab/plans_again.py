"""What a table of costs says of plans that were timed, once more unchanged models are known than it was fitted to.

A plan that only reads fewer pixels is an unchanged model at another size. The result file of
`python -m lab plans --step check` has some; the table is fitted to them as well, and all others are predicted anew.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from leanformer.measure import console
from leanformer.search.cost import LAST, Costs, fit_to_whole_models
from leanformer.search.plan import Plan

CLOSE = 0.05


@dataclass(frozen=True)
class Timed:
    """A table of costs, and the whole unchanged models that it was fitted to: image size, or `LAST`, → seconds."""

    costs: Costs
    whole: Mapping[Any, float]

    @property
    def teacher(self) -> float:
        """Seconds a batch of the unchanged model at its own size."""
        return self.whole[next(iter(self.costs.tokens))]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; `from_json` reads them."""
        return {"costs": self.costs.to_json(), "whole": [[name, seconds] for name, seconds in self.whole.items()]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Timed":
        """What `to_json` wrote."""
        whole = {name if name == LAST else tuple(name): seconds for name, seconds in data["whole"]}
        return cls(Costs.from_json(data["costs"]), whole)


def predict_again(file: Path) -> None:
    """Print how far plans were off as they were predicted, and are with the table fitted to all unchanged models.

    Args:
        file: what the step check wrote.
    """
    data = json.loads(file.read_text())
    if "whole" not in data:
        raise ValueError(f"{file} has no table of costs to predict by; the step check of today writes it there")
    timed = Timed.from_json(data)
    plans = [(row, Plan.from_json(row["plan"])) for row in data["rows"]]
    seen = {plan.size: timed.teacher / row["speedup"] for row, plan in plans if not plan.shares}
    fit_to_whole_models(timed.costs, {**timed.whole, **seen})
    changed = [(row, plan) for row, plan in plans if plan.shares]
    for name, chosen in (
        ("drawn at random", [each for each in changed if each[0]["model"].startswith("random ")]),
        ("all", changed),
    ):
        before = [row["error"] for row, _ in chosen]
        after = [timed.costs.predict(plan) * row["speedup"] / timed.teacher - 1 for row, plan in chosen]
        for which, errors in (("as predicted", before), (f"fitted to {len(seen)} more models", after)):
            console().print(f"{name}, {which}: {_told(errors)}", highlight=False)


def _told(errors: list[float]) -> str:
    sizes = sorted(map(abs, errors))
    close = sum(size <= CLOSE for size in sizes)
    return f"median {median(sizes):.1%}, worst {sizes[-1]:.1%}, {close} of {len(sizes)} within {CLOSE:.0%}"
