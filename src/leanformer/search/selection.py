"""A plan for each target, all from one search: each by itself, or all of one method as shared weights need."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .choose import MISSED, Chooser, told
from .explore import Explorer
from .plan import Plan
from .shared import shareable
from .target import Target

Points = Sequence[tuple[Target, dict[str, Any]]]
"""Targets, each with what is known of it."""


@dataclass
class Selection:
    """Chooses a plan for every target of a run.

    Attributes:
        chooser: chooses the plan for one of them.
    """

    chooser: Chooser

    def each(self, points: Points) -> None:
        """The best plan for each target, written to its entries.

        A target that has its plan is walked through as well, for the next search starts from what its search found.

        Args:
            points: targets and their entries.
        """
        for target, entries in points:
            if target.max_drop is not None:
                chosen = self.chooser.fastest_within(target.max_drop)
            else:
                chosen = self.chooser.within(target.budget(self.chooser.seconds), entries)
            self._take(entries, chosen)

    def alike(self, points: Points) -> None:
        """Plans of one method for all targets: of the one that meets most of them, then loses least.

        Args:
            points: targets and their entries.
        """
        found: dict[str, list[dict[str, Any]]] = {}
        budgets, every = [target.budget(self.chooser.seconds) for target, _ in points], self.chooser.explorer
        for name in shareable(every.space):
            space = dataclasses.replace(every.space, choices={name: every.space.choices[name]})
            alone = Explorer(space, every.costs, every.judge, every.few, every.seed)
            chooser = dataclasses.replace(self.chooser, explorer=alone, trials=False)
            found[name] = [chooser.within(budget, {}) for budget in budgets]

        def misses_and_loss(name: str) -> tuple[int, float]:
            missed = sum(each["measured"] > MISSED * most for each, most in zip(found[name], budgets, strict=True))
            return missed, sum(each["loss"] for each in found[name])

        best = min(found, key=misses_and_loss)
        for (_, entries), chosen in zip(points, found[best], strict=True):
            self._take(entries, chosen)

    def candidates(self) -> list[dict[str, Any]]:
        """Every plan that was judged on enough images, the best first; those that were timed with what they took."""
        found, memory = self.chooser.explorer.candidates(), self.chooser.memory
        return [{**told(each), **(memory.timing(each.plan) or {})} for each in found]

    def _take(self, entries: dict[str, Any], chosen: dict[str, Any]) -> None:
        if "chosen" in entries:
            return
        entries["chosen"] = chosen
        self.chooser.memory.keep()
        self.chooser.progress.say(f"chosen: {Plan.from_json(chosen['plan'])}")
