"""From a table of costs to the plan that is built: searched by prediction, then timed, then judged once more.

A plan that is predicted to keep the budget is timed; where the clock says otherwise the predictions for its family are
set right and the search is asked again. Where the plan is to be trained, the best plans of several families are tried
before one is taken.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import nn

from ..core import apply, fold
from .clock import Clock
from .distil import Distiller
from .explore import Candidate, Explorer
from .memory import Memory
from .plan import Plan
from .progress import Progress
from .target import Options

MISSED = 1.02
"""A measured time above the budget by more than this share is a miss."""
NOISE = 0.06
"""The most by which a second timing is taken to differ from the first."""
WASTED = 0.95
"""A plan that takes less than this share of the budget has given away more than was asked for."""
ROUNDS = 3
LADDER = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)
"""Speed-ups tried for `max_drop`, until one loses too much."""
HALVINGS = 2
"""Steps between the last of them that holds and the first that does not."""
TIMED = 3
"""Plans that are built and timed."""
TRIED = 4
"""Families of which the best plan is tried by training."""


@dataclass
class Chooser:
    """Chooses the plan for a target.

    Attributes:
        teacher: the unchanged model.
        seconds: what it takes a batch.
        explorer: finds plans.
        clock: times them.
        distiller: trains them for a trial.
        options: how the job is done.
        progress: where people are told.
        memory: the steps that are done, which a resumed run does not do again.
        trials: whether plans of several families are trained a little before one is taken.
    """

    teacher: nn.Module
    seconds: float
    explorer: Explorer
    clock: Clock
    distiller: Distiller
    options: Options
    progress: Progress
    memory: Memory
    trials: bool = False

    def within(self, budget: float, entries: dict[str, Any]) -> dict[str, Any]:
        """The best plan that really takes no more than the budget, measured; the fastest one where none does.

        Args:
            budget: seconds a batch.
            entries: what is known of this target; the trials are written here.
        """
        if self.seconds <= budget * (1 + 1e-9):
            return self._unchanged()
        tries: list[dict[str, Any]] = []
        for turn in range(ROUNDS):
            found = self.searched(min(budget, limit(tries, budget)), 1 / 4 if turn else 1)
            best = self.explorer.champions(found)[:TRIED] if self.trials else found[:TIMED]
            known = [each["plan"] for each in tries]
            new = self._timed([each for each in best if each.plan.to_json() not in known])
            tries += new
            if not new or self._settled(tries, budget):
                break
        if not tries:
            return self._out_of_reach(budget)
        met = [each for each in tries if each["measured"] <= limit(tries, budget)]
        if not met:
            return {**min(tries, key=lambda each: each["measured"]), "tried": tries}
        return {**self._tried(met, entries), "tried": tries}

    def fastest_within(self, drop: float) -> dict[str, Any]:
        """The fastest plan that answers otherwise in `drop` per cent at most: on a ladder of speed-ups, then between.

        Args:
            drop: points of agreement.
        """
        chosen, held = self._unchanged(), 1.0
        for lost in LADDER:
            found = self._losing_less(drop, lost)
            if found is None:
                break
            chosen, held = min(chosen, found, key=lambda each: each["measured"]), lost
        else:
            return chosen
        for _ in range(HALVINGS):
            between = math.sqrt(held * lost)
            found = self._losing_less(drop, between, 1 / 4)
            if found is None:
                lost = between
            else:
                chosen, held = min(chosen, found, key=lambda each: each["measured"]), between
        return chosen

    def _losing_less(self, drop: float, times: float, share: float = 1) -> dict[str, Any] | None:
        """The best plan that is predicted to be so many times as fast, timed; None where it loses more than `drop`."""
        good = [each for each in self.searched(self.seconds / times, share) if 100 - each.verdict.agreement <= drop]
        return self._timed(good[:1])[0] if good else None

    def searched(self, budget: float, share: float = 1) -> list[Candidate]:
        """The plans that are predicted to lose least within the budget, the best first.

        Args:
            budget: seconds a batch.
            share: of the evaluations and minutes that a search may take.
        """
        evaluations = max(1, int(share * self.options.evaluations))
        self.teacher.to(self.explorer.judge.device)

        def tell(best: Candidate) -> None:
            self.progress.say(f"agreement {best.verdict.agreement:.1f}%: {best.plan}")

        def search() -> list[Candidate]:
            minutes = share * self.options.minutes_of_search
            with self.progress.step(f"searching plans of {self.clock.words(budget)}", evaluations) as done:
                return self.explorer.best(budget, evaluations, tell, 60 * minutes, done)

        return self.memory.search(self.explorer, budget, evaluations, search)

    def _timed(self, candidates: list[Candidate]) -> list[dict[str, Any]]:
        """The candidates as plan.json has them, each with its measured time; none is timed twice."""
        new = [each for each in candidates if self.memory.timing(each.plan) is None]
        if new:
            self.memory.add_timings(self._measured(new))
        rows = []
        for each in candidates:
            timing = self.memory.timing(each.plan)
            assert timing is not None
            self.explorer.learn(each.plan, timing["measured"])
            rows.append({**told(each), **timing})
        return rows

    def _measured(self, candidates: list[Candidate]) -> list[dict[str, Any]]:
        """Predicted and measured seconds a batch of plans, timed in turn with the model itself."""
        models = {each.plan: fold(each.plan.build(self.teacher.cpu())) for each in candidates}
        with self.progress.step(f"timing the best {len(candidates)}", len(models) + 1 + self.clock.repeats) as done:
            timed = self.clock.models({None: fold(apply(self.teacher)), **models}, done)
        rows = []
        for each in candidates:
            speedup, spread = timed[each.plan].speedup(timed[None])
            measured = timed[each.plan].median
            if self.options.target.latency is None:  # beside the model itself: the machine may be slower than it was
                measured = self.seconds / speedup
            rows.append(
                {"plan": each.plan.to_json(), "predicted": each.seconds, "measured": measured, "spread": spread}
            )
        return rows

    def _tried(self, met: list[dict[str, Any]], entries: dict[str, Any]) -> dict[str, Any]:
        """Of the plans that meet the target, the one that loses least: after a trial where one pays, else as it is."""
        met = sorted(met, key=lambda each: each["loss"])
        if not self.trials:
            return met[0]
        champions: dict[tuple[str, ...], dict[str, Any]] = {}
        for each in met:
            champions.setdefault(self._family(each), each)
        finalists = list(champions.values())[:TRIED]
        first = Plan.from_json(met[0]["plan"]).build(self.teacher.cpu())
        updates = self.distiller.trial_updates(len(finalists), first, entries)
        if not updates:
            return met[0]
        trials: list[dict[str, Any]] = entries.setdefault("trials", [])
        new = [each for each in finalists if each["plan"] not in [known["plan"] for known in trials]]
        if new:
            with self.progress.step(f"trying {len(new)} plans by {updates} updates each", len(new)) as done:
                for each in new:
                    trials.append(self._trial(each, updates))
                    self.memory.keep()
                    done()
        trained = {str(trial["plan"]): trial["loss"] for trial in trials}
        return min(finalists, key=lambda each: trained[str(each["plan"])])

    def _trial(self, told_of: dict[str, Any], updates: int) -> dict[str, Any]:
        plan, judge, began = Plan.from_json(told_of["plan"]), self.explorer.judge, time.perf_counter()
        model = self.distiller.tried(plan, updates).to(judge.device)
        verdict = judge.verdict(model, plan.size)
        self.progress.say(f"after {updates} updates agreement {verdict.agreement:.1f}%: {plan}")
        return {
            "plan": told_of["plan"], "updates": updates, "loss": verdict.loss, "agreement": verdict.agreement,
            "seconds": time.perf_counter() - began,
        }  # fmt: skip

    def _out_of_reach(self, budget: float) -> dict[str, Any]:
        """The fastest plan that there is, for a target that nothing meets."""
        fastest, found = self.explorer.fastest(), self._unchanged()
        if fastest.to_json() != found["plan"]:  # else it would be timed against itself
            found = self._timed([self._candidate(fastest, self.explorer.predict(fastest))])[0]
        times = self.seconds / found["measured"]
        self.progress.say(
            f"nothing takes {self.clock.words(budget)} or less; the fastest plan found is {times:.2f} times as fast "
            f"and agrees with the model on {found['agreement']:.1f}% of the images: {fastest}"
        )
        return {**found, "out_of_reach": True}

    def _unchanged(self) -> dict[str, Any]:
        """The model as it is, as a plan."""
        plan = Plan(self.explorer.space.sizes[0])
        return {**told(self._candidate(plan, self.seconds)), "measured": self.seconds}

    def _candidate(self, plan: Plan, seconds: float) -> Candidate:
        self.teacher.to(self.explorer.judge.device)
        return Candidate(plan, seconds, self.explorer.judge(plan))

    def _settled(self, tries: list[dict[str, Any]], budget: float) -> bool:
        """Whether the best plan that keeps the budget is near to it, and no family missed it that may be better.

        A family that missed is asked again: its times are known better now.
        """
        met = [each for each in tries if each["measured"] <= limit(tries, budget)]
        if not met:
            return False
        best, done = min(met, key=lambda each: each["loss"]), {self._family(each) for each in met}
        missed = [each for each in tries if self._family(each) not in done]
        waiting = any(self.trials or each["loss"] < best["loss"] for each in missed)
        return not waiting and best["measured"] >= WASTED * min(budget, limit(tries, budget))

    def _family(self, row: dict[str, Any]) -> tuple[str, ...]:
        return self.explorer.family(Plan.from_json(row["plan"]))


def limit(tries: Sequence[dict[str, Any]], budget: float) -> float:
    """Seconds that a plan may take as timed here, so that the timing at the end will most likely find the target met.

    Args:
        tries: plans that were timed, each with the spread of its repeats; two medians of a noisy clock differ by about
            half of it.
        budget: seconds a batch.

    >>> limit([{"spread": 0.0}], 1.0), round(limit([{"spread": 0.08}], 1.0), 2)
    (1.02, 0.98)
    """
    noise = min(NOISE, median(each.get("spread", 0.0) for each in tries) / 2) if tries else 0.0
    return MISSED * budget / (1 + noise)


def told(candidate: Candidate) -> dict[str, Any]:
    """A candidate as plan.json has it."""
    verdict = candidate.verdict
    return {
        "plan": candidate.plan.to_json(), "predicted": candidate.seconds, "loss": verdict.loss,
        "agreement": verdict.agreement, "images": verdict.images,
    }  # fmt: skip
