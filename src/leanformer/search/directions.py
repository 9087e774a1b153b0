"""Directions of plans: those that people make by hand, and how new ones come from old ones."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..core import METHODS
from .plan import Space

Direction = dict[str, dict[int, float]]
"""Name of a method → block → weight from 0 to 1: its share of the strength there."""
Sized = tuple[Direction, tuple[int, int]]
"""A direction and the size of the images."""


def starts(space: Space) -> Iterator[Sized]:
    """Plans that people make by hand: even, early, late, in three blocks; of each method alone and at each size.

    Args:
        space: what plans are made from.
    """
    for size in space.sizes:
        yield {}, size
        for name, offered in space.choices.items():
            for weights in patterns(offered.blocks, METHODS[name].acts_on == "tokens"):
                yield {name: weights}, size


def patterns(blocks: tuple[int, ...], reducing: bool) -> Iterator[dict[int, float]]:
    """How a method's strength may lie over the depth.

    Args:
        blocks: where the method may act.
        reducing: whether it makes tokens fewer.
    """
    depth = len(blocks)
    for first in range(0, max(1, depth // 2 + 1), max(1, depth // 6)):
        yield dict.fromkeys(blocks[first:], 1.0)
    yield {block: (index + 1) / depth for index, block in enumerate(blocks)}
    yield {block: 1 - index / depth for index, block in enumerate(blocks)}
    if reducing:
        for first in (0, depth // 6, depth // 4):
            yield equal_counts(blocks[first:])
        quarters = [blocks[min(depth - 1, depth * quarter // 4)] for quarter in (1, 2, 3)]
        for chosen in (quarters, quarters[:2], quarters[1:], quarters[2:]):
            yield dict.fromkeys(chosen, 1.0)
    else:
        yield dict.fromkeys(blocks[: depth // 2], 1.0)
        yield dict.fromkeys(blocks[depth // 3 : 2 * depth // 3], 1.0)


def equal_counts(blocks: tuple[int, ...], left: float = 0.2) -> dict[int, float]:
    """Weights at which about the same *number* of tokens goes in each block: of fewer tokens a larger share.

    Args:
        blocks: where tokens go.
        left: share of the tokens that is left at the end, for which the numbers are the same.

    >>> {block: round(weight, 2) for block, weight in equal_counts((0, 1, 2, 3)).items()}
    {0: 0.4, 1: 0.5, 2: 0.67, 3: 1.0}
    """
    gone = (1 - left) / len(blocks)
    shares = [gone / (1 - index * gone) for index in range(len(blocks))]
    return {block: share / shares[-1] for block, share in zip(blocks, shares)}


@dataclass(frozen=True)
class Variation:
    """Makes new directions from old ones.

    Attributes:
        space: what plans are made from.
    """

    space: Space

    def of(self, one: Sized, other: Sized, draw: random.Random) -> Sized:
        """A neighbour of one direction, now and then crossed with another.

        Args:
            one: the direction to vary.
            other: another good one.
            draw: where chance comes from.
        """
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
        return _scaled(direction), size

    def with_another(self, direction: Direction, draw: random.Random) -> Direction:
        """One more method in a few blocks, or one less; never two that both change the number of tokens.

        Args:
            direction: which methods act where.
            draw: where chance comes from.
        """
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

    def _crossed(self, mine: Direction, theirs: Direction, draw: random.Random) -> Direction:
        """Blocks up to a point from one, the others from the other, for the methods that both have."""
        cut = draw.randrange(self.space.depth)
        return {
            name: {block: weight for block, weight in weights.items() if block < cut or name not in theirs}
            | {block: weight for block, weight in theirs.get(name, {}).items() if block >= cut}
            for name, weights in mine.items()
        }

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


def _scaled(direction: Direction) -> Direction:
    """The direction with a largest weight of 1, and without methods that act nowhere."""
    acting = {name: weights for name, weights in direction.items() if any(weights.values())}
    most = max((weight for weights in acting.values() for weight in weights.values()), default=1.0)
    return {name: {block: weight / most for block, weight in weights.items()} for name, weights in acting.items()}
