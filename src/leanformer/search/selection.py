"""A plan for each target, all from one search: each by itself, or all of one method as shared weights need."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from .choose import MISSED, Chooser, told
from .clock import Clock
from .distil import Distiller
from .explore import Explorer
from .memory import Memory
from .plan import Plan
from .progress import Progress
from .shared import shareable
from .target import Options, Target

Points = Sequence[tuple[Target, dict[str, Any]]]
"""Targets, each with what is known of it."""


@dataclass
class Selection:
    """Chooses a plan for every target of a run.

    Attributes:
        teacher: the unchanged model.
        seconds: what it takes a batch.
        explorer: finds plans.
        clock: times them.
        distiller: trains them for a trial.
        options: how the job is done.
        progress: where people are told.
        memory: the steps that are done.
    """

    teacher: nn.Module
    seconds: float
    explorer: Explorer
    clock: Clock
    distiller: Distiller
    options: Options
    progress: Progress
    memory: Memory

    def each(self, points: Points) -> None:
        """The best plan for each target, written to its entries.

        A target that has its plan is walked through as well, for the next search starts from what its search found.

        Args:
            points: targets and their entries.
        """
        chooser = self._chooser(self.explorer, self.options.train)
        for target, entries in points:
            if target.max_drop is not None:
                chosen = chooser.fastest_within(target.max_drop)
            else:
                chosen = chooser.within(target.budget(self.seconds), entries)
            self._take(entries, chosen)

    def alike(self, points: Points) -> None:
        """Plans of one method for all targets: of the one that meets most of them, then loses least.

        Args:
            points: targets and their entries.
        """
        found: dict[str, list[dict[str, Any]]] = {}
        budgets = [target.budget(self.seconds) for target, _ in points]
        for name in shareable(self.explorer.space):
            space = dataclasses.replace(self.explorer.space, choices={name: self.explorer.space.choices[name]})
            alone = Explorer(space, self.explorer.costs, self.explorer.judge, self.explorer.few, self.explorer.seed)
            chooser = self._chooser(alone, trials=False)
            found[name] = [chooser.within(budget, {}) for budget in budgets]

        def misses_and_loss(name: str) -> tuple[int, float]:
            missed = sum(each["measured"] > MISSED * most for each, most in zip(found[name], budgets, strict=True))
            return missed, sum(each["loss"] for each in found[name])

        best = min(found, key=misses_and_loss)
        for (_, entries), chosen in zip(points, found[best], strict=True):
            self._take(entries, chosen)

    def candidates(self) -> list[dict[str, Any]]:
        """Every plan that was judged on enough images, the best first; those that were timed with what they took."""
        return [{**told(each), **(self.memory.timing(each.plan) or {})} for each in self.explorer.candidates()]

    def _take(self, entries: dict[str, Any], chosen: dict[str, Any]) -> None:
        if "chosen" in entries:
            return
        entries["chosen"] = chosen
        self.memory.keep()
        self.progress.say(f"chosen: {Plan.from_json(chosen['plan'])}")

    def _chooser(self, explorer: Explorer, trials: bool) -> Chooser:
        return Chooser(
            self.teacher, self.seconds, explorer, self.clock, self.distiller, self.options, self.progress, self.memory,
            trials,
        )  # fmt: skip
