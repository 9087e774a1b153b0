"""The search: an evolution of plans that all cost the same, so that only what they lose tells them apart.

A plan is a direction (which blocks, which methods, which size) and a strength. The strength follows from the budget:
it is the least at which the predicted time is met, found by bisection. What varies is the direction.

Plans race: each is judged on a few images, the better ones on more, the best on all. The pool that new plans come from
keeps the best of every family (the set of methods, at the model's own size or at a smaller one).
"""

import random
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .cost import Costs
from .directions import Direction, Variation, starts
from .judge import Judge, Verdict
from .plan import Plan, Space

FIRST = 4
"""The first look at a plan takes this part of the `few` images."""
PROMOTED = 0.35
"""Share of the plans seen so far among which one must be at the first look to be judged on `few` images."""
STRONGEST = 4.0
"""The highest strength: a block with a quarter of the largest weight has then all that its method offers."""
POOL, FINAL, FAMILIES = 24, 6, 4
"""Plans that new ones come from, those that are judged on all images, and families whose best plan is too."""


@dataclass(frozen=True)
class Candidate:
    """A plan within the budget, what it costs and what it loses."""

    plan: Plan
    seconds: float
    verdict: Verdict

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
        seen: every plan that was judged on `few` images or more.
        directions: those of the last search's pool, the best first; the next search starts from them as well.
        ratios: family → measured over predicted time of its plans that were timed.
    """

    space: Space
    costs: Costs
    judge: Judge
    few: int = 64
    seed: int = 0
    seen: dict[Plan, Candidate] = field(default_factory=dict)
    directions: list[tuple[Direction, tuple[int, int]]] = field(default_factory=list)
    ratios: dict[tuple[str, ...], list[float]] = field(default_factory=dict)

    def predict(self, plan: Plan) -> float:
        """Seconds a batch of a plan: as the table of costs has it, set right by plans of its family that were timed.

        Args:
            plan: what is changed.
        """
        every = [ratio for ratios in self.ratios.values() for ratio in ratios]
        known = self.ratios.get(self.family(plan)) or every or [1.0]
        return statistics.median(known) * self.costs.predict(plan)

    def learn(self, plan: Plan, measured: float) -> None:
        """Take note of what a plan really takes.

        Args:
            plan: what is changed.
            measured: seconds a batch.
        """
        self.ratios.setdefault(self.family(plan), []).append(measured / self.costs.predict(plan))

    def within(self, budget: float, direction: Direction, size: tuple[int, int]) -> Plan | None:
        """The gentlest plan of this direction and size that is predicted to take at most `budget` seconds.

        Args:
            budget: seconds a batch.
            direction: which methods act where, in proportion to each other.
            size: of the images.
        """
        if self.predict(Plan(size)) <= budget:
            return Plan(size)
        low, high = 0.0, STRONGEST
        strongest = self.at_strength(direction, size, high)
        if self.predict(strongest) > budget:
            return None
        for _ in range(14):
            middle = (low + high) / 2
            fits = self.predict(self.at_strength(direction, size, middle)) <= budget
            low, high = (low, middle) if fits else (middle, high)
        return self.at_strength(direction, size, high)

    def at_strength(self, direction: Direction, size: tuple[int, int], strength: float) -> Plan:
        """Each weight as a share: what a method offers at most, times the strength; steps are rounded to."""
        shares: dict[str, dict[int, float]] = {}
        for name, weights in direction.items():
            offered = self.space.choices[name]
            for block, weight in weights.items():
                share = min(1.0, strength * weight) * offered.most
                if offered.steps is not None:
                    share = max((step for step in (0.0, *offered.steps) if step <= share + 1e-9), default=0.0)
                shares.setdefault(name, {})[block] = share
        return Plan.of(size, self.space.without_clashes(shares))

    def best(
        self,
        budget: float,
        evaluations: int = 200,
        told: Callable[[Candidate], None] = lambda candidate: None,
        stop: Callable[[], bool] = lambda: False,
        done: Callable[[int], None] = lambda evaluations: None,
    ) -> list[Candidate]:
        """The plans that lose least within the budget, the best first, judged on all images.

        Args:
            budget: seconds a batch.
            evaluations: how many plans could be judged on `few` images for what this search may cost.
            told: called with every candidate that was judged on `few` images.
            stop: asked between plans; True ends the search with what is there.
            done: told how many evaluations' worth of images have been looked at.
        """
        race = _Race(self, budget, evaluations, told, stop, done)
        race.run([*self.directions, *self._shuffled(race.draw)], share=0.5)
        variation = Variation(self.space)
        idle = 0
        while race.pool and race.open() and idle < 200:
            parent, other = race.parents()
            idle = 0 if race.consider(*variation.of(parent, other, race.draw)) else idle + 1
        self.directions = [(entry.direction, entry.size) for entry in race.pool]
        final = [
            Candidate(e.candidate.plan, e.candidate.seconds, self.judge(e.candidate.plan)) for e in race.finalists()
        ]
        self.seen |= {each.plan: each for each in final}
        return sorted(final, key=lambda each: each.loss)

    def fastest(self) -> Plan:
        """The plan that is predicted to be the fastest of all that people make by hand."""
        strongest = (self.at_strength(direction, size, STRONGEST) for direction, size in starts(self.space))
        return min(strongest, key=self.predict)

    def family(self, plan: Plan) -> tuple[str, ...]:
        """The methods of a plan, and whether it sees smaller images."""
        smaller = ("fewer pixels",) if plan.size != self.space.sizes[0] else ()
        return (*(name for name, _ in plan.shares), *smaller)

    def _shuffled(self, draw: random.Random) -> list[tuple[Direction, tuple[int, int]]]:
        return sorted(starts(self.space), key=lambda start: draw.random())


@dataclass(frozen=True)
class _Entry:
    """A candidate of the pool and the direction that it came from."""

    candidate: Candidate
    direction: Direction
    size: tuple[int, int]


class _Race:
    """One search within one budget: what was tried, and the pool of the best."""

    def __init__(
        self,
        explorer: Explorer,
        budget: float,
        evaluations: int,
        told: Callable[[Candidate], None],
        stop: Callable[[], bool],
        done: Callable[[int], None],
    ):
        self.explorer, self.budget = explorer, budget
        self.told, self.stop, self.done = told, stop, done
        self.draw = random.Random(f"{explorer.seed} {budget}")
        self.images = evaluations * explorer.few
        self.looked = 0
        self.tried: set[Plan] = set()
        self.first_looks: list[float] = []
        self.pool: list[_Entry] = []

    def open(self, share: float = 1.0) -> bool:
        """Whether there are images left to look at."""
        return self.looked < share * self.images and not self.stop()

    def run(self, given: Iterable[tuple[Direction, tuple[int, int]]], share: float) -> None:
        """Consider all of these, or as many as this share of the images is enough for."""
        for direction, size in given:
            if not self.open(share):
                break
            self.consider(direction, size)

    def consider(self, direction: Direction, size: tuple[int, int]) -> bool:
        """Judge the plan of a direction and, if it is good, take it into the pool; False where it was known."""
        explorer = self.explorer
        plan = explorer.within(self.budget, direction, size)
        if plan is None or plan in self.tried:
            return False
        self.tried.add(plan)
        loss = self._look(plan, max(1, explorer.few // FIRST)).loss
        self.first_looks = sorted([*self.first_looks, loss])
        if self.first_looks.index(loss) > max(FINAL, PROMOTED * len(self.first_looks)):
            return True
        candidate = Candidate(plan, explorer.predict(plan), self._look(plan, explorer.few))
        explorer.seen[plan] = candidate
        self.pool = self._trimmed([*self.pool, _Entry(candidate, direction, size)])
        self.told(candidate)
        return True

    def parents(self) -> tuple[tuple[Direction, tuple[int, int]], tuple[Direction, tuple[int, int]]]:
        """One direction of the pool, the better the likelier, and any other."""
        one = self.pool[min(int(self.draw.expovariate(0.25)), len(self.pool) - 1)]
        other = self.draw.choice(self.pool)
        return (one.direction, one.size), (other.direction, other.size)

    def finalists(self) -> list[_Entry]:
        """The best of the pool, and the best of the best families."""
        chosen = self.pool[:FINAL]
        return [*chosen, *(entry for entry in self._champions(self.pool)[:FAMILIES] if entry not in chosen)]

    def _look(self, plan: Plan, images: int) -> Verdict:
        self.looked += images
        self.done(self.looked // self.explorer.few)
        return self.explorer.judge(plan, images)

    def _trimmed(self, entries: list[_Entry]) -> list[_Entry]:
        ordered = sorted(entries, key=lambda entry: entry.candidate.loss)
        champions = self._champions(ordered)
        return [entry for index, entry in enumerate(ordered) if index < POOL or entry in champions]

    def _champions(self, ordered: list[_Entry]) -> list[_Entry]:
        best: dict[tuple[str, ...], _Entry] = {}
        for entry in ordered:
            best.setdefault(self.explorer.family(entry.candidate.plan), entry)
        return list(best.values())
