"""The search: an evolution of plans that all cost the same, so that only what they lose tells them apart.

A plan is a direction (which blocks, which methods, which size) and a strength. The strength follows from the budget:
it is the least at which the predicted time is met, found by bisection. What varies is the direction.

Plans race: all that people make by hand are looked at first, and each goes on to more images for as long as it is not
worse than the best one, image by image, by more than chance. So nothing that comes out is worse than what is made by
hand. The pool that new plans come from keeps the best of every family (the set of methods, at the model's own size or
at a smaller one).
"""

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from .cost import Costs
from .directions import Direction, combined, starts, varied
from .judge import Judge, Verdict
from .plan import Plan, Space

FIRST = 4
"""The first look at a plan takes this part of the `few` images."""
ERRORS_BY_HAND, ERRORS_NEW = 1.5, 0.5
"""A plan is given up when it is worse than the best by so many standard errors: one made by hand, and a new one."""
STRONGEST = 4.0
"""The highest strength: a block with a quarter of the largest weight has then all that its method offers."""
POOL, FINAL, FAMILIES = 24, 6, 4
"""Plans that new ones come from, those that are judged on all images, and families whose best plan is too."""
TO_FAMILIES = 0.25
"""Share of the new plans that come from the best of some family: what training will bring back is not known yet."""


@dataclass(frozen=True)
class Candidate:
    """A plan within the budget, what it costs, what it loses, and the direction that it came from."""

    plan: Plan
    seconds: float
    verdict: Verdict
    direction: Direction | None = field(default=None, compare=False)

    @property
    def loss(self) -> float:
        return self.verdict.loss


@dataclass
class Explorer:
    """Finds the plan that loses least within a time.

    Attributes:
        space: what plans are made from.
        costs: what they cost.
        judge: what they lose.
        few: images on which a promising plan is judged; the best ones are judged on all.
        seed: of the search.
        looked_at: plan → images that it was judged on here; a resumed search counts what it has read as well.
        directions: those of the last search's pool, the best first; the next search starts from them as well.
        ratios: family → measured over predicted time of its plans that were timed.
        timed: what these plans take.
    """

    space: Space
    costs: Costs
    judge: Judge
    few: int = 64
    seed: int = 0
    looked_at: dict[Plan, int] = field(default_factory=dict)
    directions: list[Direction] = field(default_factory=list)
    ratios: dict[tuple[str, ...], list[float]] = field(default_factory=dict)
    timed: dict[Plan, float] = field(default_factory=dict)

    def predict(self, plan: Plan) -> float:
        """Seconds a batch of a plan: as timed, or as the table of costs has it, set right by timed plans of its family.

        Args:
            plan: what is changed.
        """
        if plan in self.timed:
            return self.timed[plan]
        fitted = plan == Plan(self.space.sizes[0])  # the table of costs is fitted to it
        every = [] if fitted else [ratio for ratios in self.ratios.values() for ratio in ratios]
        known = self.ratios.get(self.family(plan)) or every or [1.0]
        return statistics.median(known) * self.costs.predict(plan)

    def learn(self, plan: Plan, measured: float) -> None:
        """Take note of the seconds a batch that a plan really takes."""
        if plan in self.timed:
            return
        self.timed[plan] = measured
        self.ratios.setdefault(self.family(plan), []).append(measured / self.costs.predict(plan))

    def within(self, budget: float, direction: Direction) -> Plan | None:
        """The gentlest plan of this direction that is predicted to take at most `budget` seconds.

        Args:
            budget: seconds a batch.
            direction: which methods act where, in proportion to each other, and at which size.
        """
        low, high = 0.0, STRONGEST
        gentlest = self.at_strength(direction, low)
        if self.predict(gentlest) <= budget:
            return gentlest
        if self.predict(self.at_strength(direction, high)) > budget:
            return None
        for _ in range(14):
            middle = (low + high) / 2
            fits = self.predict(self.at_strength(direction, middle)) <= budget
            low, high = (low, middle) if fits else (middle, high)
        return self.at_strength(direction, high)

    def at_strength(self, direction: Direction, strength: float) -> Plan:
        """Each weight as a share: what a method offers at most, times the strength; steps are rounded to."""
        shares: dict[str, dict[int, float]] = {}
        scaled = self.space.following_the_budget(direction.weights)
        for name, weights in direction.weights.items():
            offered, times = self.space.choices[name], strength if name in scaled else 1.0
            wanted = {block: min(1.0, times * weight) * offered.most for block, weight in weights.items()}
            if offered.steps is None:
                shares[name] = direction.shares(wanted, offered.most)
            else:
                steps = (0.0, *offered.steps)
                shares[name] = {b: max(step for step in steps if step <= w + 1e-9) for b, w in wanted.items()}
        return Plan.of(direction.size, self.space.without_clashes(shares))

    def best(
        self,
        budget: float,
        evaluations: int = 200,
        told: Callable[[Candidate], None] = lambda candidate: None,
        seconds: float = math.inf,
        done: Callable[[int], None] = lambda evaluations: None,
    ) -> list[Candidate]:
        """The plans that lose least within the budget, the best first, judged on all images.

        Args:
            budget: seconds a batch.
            evaluations: how many plans could be judged on `few` images for what this search may cost.
            told: called with every plan that is the best so far.
            seconds: of search at most; it then ends with what is there.
            done: told how many of the evaluations are behind it: of images, or of the time, whichever is further.
        """
        race = _Race(self, budget, evaluations, told, seconds, done)
        by_hand = sorted(starts(self.space), key=lambda start: (*self._late(start), race.draw.random()))
        race.begin([*self.directions, *by_hand])
        if not race.pool:
            race.begin(combined(self.space))
        idle = 0
        while race.pool and race.open() and idle < 200:
            idle = 0 if race.consider(varied(race.parent(), self.space, race.draw)) else idle + 1
        self.directions = [each.direction for each in race.pool if each.direction is not None]
        return sorted(race.finalists(), key=lambda each: each.loss)

    def _late(self, start: Direction) -> tuple[bool, bool, bool, bool]:
        """What is looked at late, should the time not do for all: methods that must be trained for, which lose much
        before; fitted methods, for fitting takes long; methods after smaller images alone; methods on smaller images
        after those on the model's own."""
        offered = [self.space.choices[name] for name in start.weights]
        trained, fitted = any(each.trained for each in offered), any(each.fitted for each in offered)
        return trained, fitted, bool(start.weights), start.size != self.space.sizes[0]

    def fastest(self) -> Plan:
        """The plan that is predicted to be the fastest of all that people make by hand, and of methods together."""
        every = itertools.chain(starts(self.space), combined(self.space))
        strongest = (self.at_strength(direction, STRONGEST) for direction in every)
        return min(strongest, key=self.predict)

    def family(self, plan: Plan) -> tuple[str, ...]:
        """The methods of a plan, and whether it sees smaller images."""
        smaller = ("fewer pixels",) if plan.size != self.space.sizes[0] else ()
        return (*(name for name, _ in plan.shares), *smaller)

    def candidates(self) -> list[Candidate]:
        """Every plan that was judged on `few` images or more, the best first."""
        seen = {plan: len(losses) for plan, (losses, _) in self.judge.known.items()}
        many = min(self.few, max(seen.values(), default=0))
        found = [Candidate(p, self.predict(p), self.judge(p, n)) for p, n in seen.items() if n >= many > 0]
        return sorted(found, key=lambda each: each.loss)

    def champions(self, ordered: Iterable[Candidate]) -> list[Candidate]:
        """The first of each family, of candidates in order."""
        best: dict[tuple[str, ...], Candidate] = {}
        for each in ordered:
            best.setdefault(self.family(each.plan), each)
        return list(best.values())


@dataclass
class _Race:
    """One search within one budget: what was tried, and the pool of the best; the rest as in `Explorer.best`."""

    explorer: Explorer
    budget: float
    evaluations: int
    told: Callable[[Candidate], None]
    seconds: float
    done: Callable[[int], None]
    looked: int = 0
    tried: set[Plan] = field(default_factory=set)
    pool: list[Candidate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.draw = random.Random(f"{self.explorer.seed} {self.budget}")
        self.every = len(self.explorer.judge.answers)
        self.few = min(self.explorer.few, self.every)
        self.first = max(1, self.few // FIRST)

    def open(self, share: float = 1.0) -> bool:
        """Whether time and images are left of this share, beside those that the families' best need at the end."""
        images = share * self.evaluations * self.explorer.few
        kept = min(FAMILIES * (self.every - self.few), images / 2)
        return self.looked + kept < images and time.monotonic() - self.began < share * self.seconds

    def begin(self, given: Iterable[Direction]) -> None:
        """A first look at as many of these as half of time and images are for; then they race, the best first."""
        plans: dict[Plan, Direction] = {}
        for direction in given:
            if plans and not self.open(0.5):
                break
            plan = self.explorer.within(self.budget, direction)
            if plan is not None and plan not in plans:
                plans[plan] = direction
                self._look(plan, self.first)
        self.tried |= plans.keys()
        for plan in sorted(plans, key=lambda plan: self._look(plan, self.first).loss):
            families = {self.explorer.family(each.plan) for each in self.pool}
            if self.open() or not (len(families) == FAMILIES or self.explorer.family(plan) in families):
                self._race(plan, plans[plan], ERRORS_BY_HAND)

    def consider(self, direction: Direction) -> bool:
        """Judge the plan of a direction and, if it is good, take it into the pool; False where it was known."""
        plan = self.explorer.within(self.budget, direction)
        if plan is None or plan in self.tried:
            return False
        self.tried.add(plan)
        self._race(plan, direction, ERRORS_NEW)
        return True

    def parent(self) -> Direction:
        """A direction of the pool, the better the likelier; every so often that of the best plan of some family."""
        pool = self.pool
        if self.draw.random() < TO_FAMILIES:
            pool = [self.draw.choice(self.explorer.champions(pool)[:FAMILIES])]
        direction = pool[min(int(self.draw.expovariate(0.25)), len(pool) - 1)].direction
        assert direction is not None
        return direction

    def finalists(self) -> list[Candidate]:
        """The best of the pool, and the best of the best families, judged on all images."""
        chosen = self.pool[:FINAL]
        chosen += [each for each in self.explorer.champions(self.pool)[:FAMILIES] if each not in chosen]
        return [replace(each, verdict=self._look(each.plan, self.every)) for each in chosen]

    def _race(self, plan: Plan, direction: Direction, errors: float) -> None:
        """Judge a plan on more and more images, for as long as it may be the best of all or of its family.

        The first of a family is judged on `few`.
        """
        rivals = self._rivals(plan)
        if len(rivals) == 2 and _beaten(self._look(plan, self.first), rivals, errors):
            return
        verdict = self._look(plan, self.few)
        if not _beaten(verdict, rivals[:1], errors):
            verdict = self._look(plan, self.every)
        candidate = Candidate(plan, self.explorer.predict(plan), verdict, direction)
        self.pool = self._trimmed([*self.pool, candidate])
        if self.pool[0] is candidate:
            self.told(candidate)

    def _rivals(self, plan: Plan) -> list[Verdict]:
        """Of the best plan of all, and of the best of this plan's family where there is one."""
        family = self.explorer.family(plan)
        own = [each.verdict for each in self.pool if self.explorer.family(each.plan) == family]
        return [each.verdict for each in self.pool[:1]] + own[:1]

    def _look(self, plan: Plan, images: int) -> Verdict:
        verdict, before = self.explorer.judge(plan, images), self.explorer.looked_at.get(plan, 0)
        self.looked += max(0, images - before)
        self.explorer.looked_at[plan] = max(images, before)
        by_time = min(1.0, (time.monotonic() - self.began) / max(self.seconds, 1e-9))
        self.done(max(self.looked // self.explorer.few, int(by_time * self.evaluations)))  # whichever ends the search
        return verdict

    def _trimmed(self, candidates: list[Candidate]) -> list[Candidate]:
        """The best first: those that were beaten on few images behind those judged on all."""
        ordered = sorted(candidates, key=lambda each: (-each.verdict.images, each.loss))
        champions = self.explorer.champions(ordered)
        return [each for index, each in enumerate(ordered) if index < POOL or each in champions]


def _beaten(verdict: Verdict, rivals: Iterable[Verdict], errors: float) -> bool:
    """Whether a plan is worse than all of its rivals by more than so many standard errors."""
    found = [verdict.worse_than(rival, errors) for rival in rivals]
    return bool(found) and all(found)
