"""What a run has found, step by step: the same call goes on from there and does no finished step again.

A step is one search within a budget, or the timing of one plan. A run that goes on walks through its finished steps and
finds their results, so that it comes to the same plan as a run that was never stopped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .directions import Direction
from .explore import Candidate, Explorer
from .plan import Plan


@dataclass
class Memory:
    """Finished steps among the entries of plan.json.

    Attributes:
        entries: of plan.json; steps stand under 'searches' and 'timed'.
        keep: writes them.
        walked: searches that this run has come by.

    >>> Memory({}, lambda: None).timing(Plan((32, 32))) is None
    True
    """

    entries: dict[str, Any]
    keep: Callable[[], None]
    walked: int = 0

    def timing(self, plan: Plan) -> dict[str, Any] | None:
        """What is known of a plan that was timed: its predicted and measured seconds a batch, and the spread.

        Args:
            plan: what is changed.
        """
        return next((each for each in self.entries.get("timed", ()) if each["plan"] == plan.to_json()), None)

    def add_timings(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write down plans that were timed.

        Args:
            rows: as `timing` returns them.
        """
        self.entries.setdefault("timed", []).extend(rows)
        self.keep()

    def search(
        self, explorer: Explorer, budget: float, evaluations: int, run: Callable[[], list[Candidate]]
    ) -> list[Candidate]:
        """The plans that a search finds, or found before.

        Args:
            explorer: what searches; it is left as after the search.
            budget: seconds a batch.
            evaluations: how many plans the search may look at.
            run: the search.
        """
        asked = [sorted(explorer.space.choices), budget, evaluations]
        searches = self.entries.setdefault("searches", [])
        self.walked += 1
        known = searches[self.walked - 1] if self.walked <= len(searches) else None
        if known is None or known["asked"] != asked:
            found = run()
            searches[self.walked - 1 :] = [{"asked": asked, **_after(explorer, found)}]
            self.keep()
            return found
        explorer.directions = [_direction(each) for each in known["directions"]]
        explorer.looked_at = dict(zip(explorer.judge.known, known["looked_at"]))
        plans = map(Plan.from_json, known["found"])
        return [Candidate(plan, seconds, explorer.judge(plan)) for plan, seconds in zip(plans, known["seconds"])]


def _after(explorer: Explorer, found: Sequence[Candidate]) -> dict[str, Any]:
    """A finished search as plan.json has it: what it found, and what the next one starts from."""
    return {
        "found": [each.plan.to_json() for each in found],
        "seconds": [each.seconds for each in found],
        "looked_at": [explorer.looked_at.get(plan, 0) for plan in explorer.judge.known],
        "directions": [
            {"size": each.size, "weights": each.weights, "counted": each.counted} for each in explorer.directions
        ],
    }


def _direction(told: dict[str, Any]) -> Direction:
    """The direction that `_after` wrote."""
    weights = {name: {int(block): one for block, one in given.items()} for name, given in told["weights"].items()}
    return Direction((told["size"][0], told["size"][1]), weights, told["counted"])
