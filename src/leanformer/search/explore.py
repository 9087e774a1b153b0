"""The search: an evolution of plans that all cost the same, so that only what they lose tells them apart.

A plan is a direction (which blocks, which methods, which size) and a strength. The strength follows from the budget:
it is the least at which the predicted time is met, found by bisection. What varies is the direction.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ..core import METHODS
from .cost import Costs
from .judge import Judge, Verdict
from .plan import Plan, Space

Direction = dict[str, dict[int, float]]
"""Name of a method → block → weight from 0 to 1: its share of the strength there."""


@dataclass(frozen=True)
class Candidate:
    """A plan within the budget, what it costs and what it loses."""

    plan: Plan
    seconds: float
    verdict: Verdict


@dataclass
class Explorer:
    """Finds the plan that loses least within a time.

    Attributes:
        space: what plans are made from.
        costs: what they cost.
        judge: what they lose.
        few: images on which every plan is judged; the best ones are judged on all.
        seed: of the search.
    """

    space: Space
    costs: Costs
    judge: Judge
    few: int = 64
    seed: int = 0
    seen: dict[Plan, Candidate] = field(default_factory=dict)

    def within(self, budget: float, direction: Direction, size: tuple[int, int]) -> Plan | None:
        """The gentlest plan of this direction and size that is predicted to take at most `budget` seconds.

        Args:
            budget: seconds a batch.
            direction: which methods act where, in proportion to each other.
            size: of the images.
        """
        if self.costs.predict(Plan(size)) <= budget:
            return Plan(size)
        low, high = 0.0, 1.0
        strongest = self.at_strength(direction, size, high)
        if self.costs.predict(strongest) > budget:
            return None
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (
                (low, middle)
                if self.costs.predict(self.at_strength(direction, size, middle)) <= budget
                else (middle, high)
            )
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

    def starts(self) -> Iterator[tuple[Direction, tuple[int, int]]]:
        """Plans that people make by hand: even, early, late, in three blocks; of each method alone and at each size."""
        for size in self.space.sizes:
            yield {}, size
            for name in self.space.choices:
                blocks = self.space.choices[name].blocks
                for weights in _patterns(blocks, METHODS[name].acts_on == "tokens"):
                    yield {name: weights}, size

    def best(
        self,
        budget: float,
        evaluations: int = 200,
        told: Callable[[Candidate], None] = lambda candidate: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Candidate]:
        """The plans that lose least within the budget, the best first, judged on all images.

        Args:
            budget: seconds a batch.
            evaluations: how many plans are judged on few images.
            told: called with every candidate judged.
            stop: asked between evaluations; True ends the search with what is there.
        """
        draw = random.Random(f"{self.seed} {budget}")
        pool: list[tuple[Candidate, Direction, tuple[int, int]]] = []
        tried: set[Plan] = set()

        def consider(direction: Direction, size: tuple[int, int]) -> bool:
            plan = self.within(budget, direction, size)
            if plan is None or plan in tried:
                return False
            tried.add(plan)
            candidate = Candidate(plan, self.costs.predict(plan), self.judge(plan, self.few))
            self.seen[plan] = candidate
            pool.append((candidate, direction, size))
            told(candidate)
            return True

        starts = sorted(self.starts(), key=lambda start: draw.random())
        for direction, size in starts:
            if stop() or len(tried) >= 0.5 * evaluations:
                break
            consider(direction, size)
        idle = 0
        while pool and len(tried) < evaluations and idle < 200 and not stop():
            pool.sort(key=lambda each: each[0].verdict.loss)
            del pool[24:]
            parent = pool[min(int(draw.expovariate(0.25)), len(pool) - 1)]
            other = draw.choice(pool)
            idle = 0 if consider(*self.varied(parent[1:], other[1:], draw)) else idle + 1
        pool.sort(key=lambda each: each[0].verdict.loss)
        final = [Candidate(c.plan, c.seconds, self.judge(c.plan)) for c, _, _ in pool[:8]]
        return sorted(final, key=lambda candidate: candidate.verdict.loss)

    def varied(
        self, one: tuple[Direction, tuple[int, int]], other: tuple[Direction, tuple[int, int]], draw: random.Random
    ) -> tuple[Direction, tuple[int, int]]:
        """A neighbour of one direction, now and then crossed with another."""
        direction = {name: dict(weights) for name, weights in one[0].items()}
        size = one[1]
        move = draw.random()
        if move < 0.15 and len(self.space.sizes) > 1:
            index = self.space.sizes.index(size) + draw.choice((-1, 1))
            size = self.space.sizes[min(max(index, 0), len(self.space.sizes) - 1)]
        elif move < 0.3:
            direction = self._crossed(direction, other[0], draw)
        elif move < 0.4 or not direction:
            direction = self.with_another(direction, draw)
        else:
            name = draw.choice(list(direction))
            direction[name] = self._shaken(name, direction[name], draw)
        return {name: weights for name, weights in direction.items() if any(weights.values())}, size

    def _crossed(self, mine: Direction, theirs: Direction, draw: random.Random) -> Direction:
        """Blocks up to a point from one, the others from the other, for the methods that both have."""
        cut = draw.randrange(self.space.depth)
        return {
            name: {block: weight for block, weight in weights.items() if block < cut or name not in theirs}
            | {block: weight for block, weight in theirs.get(name, {}).items() if block >= cut}
            for name, weights in mine.items()
        }

    def with_another(self, direction: Direction, draw: random.Random) -> Direction:
        """One more method in a few blocks, or one less; never two that both change the number of tokens."""
        if len(direction) > 1 and draw.random() < 0.4:
            gone = draw.choice(list(direction))
            return {name: weights for name, weights in direction.items() if name != gone}
        reduces = any(METHODS[name].acts_on == "tokens" for name in direction)
        free = [
            n for n in self.space.choices if n not in direction and not (reduces and METHODS[n].acts_on == "tokens")
        ]
        if not free:
            return direction
        name = draw.choice(free)
        blocks = self.space.choices[name].blocks
        some = draw.sample(blocks, min(len(blocks), draw.randint(1, 4)))
        return {**direction, name: {block: draw.uniform(0.3, 1.0) for block in some}}

    def _shaken(self, name: str, weights: Mapping[int, float], draw: random.Random) -> dict[int, float]:
        """Weights moved a little, moved to a neighbouring block, dropped or added."""
        blocks, new = self.space.choices[name].blocks, dict(weights)
        move = draw.random()
        if move < 0.55 or not new:
            for block in blocks:
                if draw.random() < 0.4:
                    new[block] = min(1.0, max(0.0, new.get(block, 0.0) + draw.gauss(0, 0.15)))
        elif move < 0.7:
            shift = draw.choice((-1, 1))
            new = {block + shift: weight for block, weight in new.items() if block + shift in blocks}
        elif move < 0.85:
            new.pop(draw.choice(list(new)), None)
        else:
            new[draw.choice(blocks)] = draw.uniform(0.1, 1.0)
        return {block: weight for block, weight in new.items() if weight > 0.02}


def _patterns(blocks: tuple[int, ...], reducing: bool) -> Iterator[dict[int, float]]:
    """How a method's strength may lie over the depth."""
    depth = len(blocks)
    for first in range(0, max(1, depth // 2 + 1), max(1, depth // 6)):
        yield dict.fromkeys(blocks[first:], 1.0)
    yield {block: (index + 1) / depth for index, block in enumerate(blocks)}
    yield {block: 1 - index / depth for index, block in enumerate(blocks)}
    if reducing:
        quarters = [blocks[min(depth - 1, depth * quarter // 4)] for quarter in (1, 2, 3)]
        for chosen in (quarters, quarters[:2], quarters[1:], quarters[2:]):
            yield dict.fromkeys(chosen, 1.0)
    else:
        yield dict.fromkeys(blocks[: depth // 2], 1.0)
        yield dict.fromkeys(blocks[depth // 3 : 2 * depth // 3], 1.0)
