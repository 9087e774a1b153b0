"""Directions of plans: those that people make by hand, and how new ones come from old ones."""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..core import METHODS, Choices
from .plan import Space

Weights = dict[str, dict[int, float]]
"""Name of a method → block → weight from 0 to 1: its share of the strength there."""


@dataclass(frozen=True)
class Direction:
    """Which methods act where, in proportion to each other; how strongly is left to the budget.

    Attributes:
        size: height and width of the images.
        weights: name of a method → block → weight from 0 to 1.
        counted: whether weights of tokens that go are *numbers* of tokens, relative to those of the first block; else
            they are shares of the tokens that come into the block.

    >>> Direction((32, 32), {}, counted=True).shares({0: 0.2, 1: 0.2, 2: 0.2}, most=0.5)
    {0: 0.2, 1: 0.25, 2: 0.333}
    """

    size: tuple[int, int]
    weights: Weights = field(default_factory=dict)
    counted: bool = False

    def shares(self, wanted: Mapping[int, float], most: float) -> dict[int, float]:
        """Shares of the tokens that come in, `most` at most, for what is wanted gone by block (number or share)."""
        left, found = 1.0, {}
        for block in sorted(wanted):
            found[block] = round(min(most, wanted[block] / (left if self.counted else 1.0)), 3)
            left *= 1 - found[block]
        return found


def starts(space: Space) -> Iterator[Direction]:
    """Plans that people make by hand: even, growing, in three blocks; of each method alone, at each size.

    Methods that must be trained for begin at the model's own size alone: what they lose before tells little.

    Args:
        space: what plans are made from.
    """
    for size in space.sizes:
        yield Direction(size)
        for name, offered in space.choices.items():
            if offered.trained and size != space.sizes[0]:
                continue
            reduces = METHODS[name].acts_on == "tokens"
            for weights in patterns(offered.blocks, reduces):
                yield Direction(size, {name: weights})
            for first in _places(len(offered.blocks), 0, 1 / 6, 1 / 4, 1 / 3) if reduces else ():
                yield Direction(size, {name: dict.fromkeys(offered.blocks[first:], 1.0)}, counted=True)


def combined(space: Space) -> Iterator[Direction]:
    """Several methods together, each in all its blocks, at each size: for a time that none of them reaches alone.

    Args:
        space: what plans are made from.
    """
    tokens = [name for name in space.acting_on("tokens") if not space.choices[name].trained]
    others = [name for name in space.choices if METHODS[name].acts_on != "tokens"]
    for size in space.sizes:
        for count in range(len(others) + 1):
            for some in itertools.combinations(others, count):
                for names in (some, *((name, *some) for name in tokens)):
                    if len(names) > 1:
                        yield Direction(size, {name: dict.fromkeys(space.choices[name].blocks, 1.0) for name in names})


def patterns(blocks: tuple[int, ...], reducing: bool) -> Iterator[dict[int, float]]:
    """How a method's strength may lie over the depth.

    Args:
        blocks: where the method may act.
        reducing: whether it makes tokens fewer.
    """
    depth = len(blocks)
    yield {block: (index + 1) / depth for index, block in enumerate(blocks)}
    if not reducing:
        for first in _places(depth, 0, 1 / 3, 2 / 3):
            yield dict.fromkeys(blocks[first:], 1.0)
        yield dict.fromkeys(blocks[: max(1, depth // 2)], 1.0)
        return
    for first in _places(depth, 0, 1 / 4):
        yield dict.fromkeys(blocks[first:], 1.0)
    quarters = [blocks[place] for place in _places(depth, 1 / 4, 1 / 2, 3 / 4)]
    for chosen in (quarters, quarters[:2]):
        yield dict.fromkeys(chosen, 1.0)


def _places(depth: int, *parts: float) -> list[int]:
    """These parts of the depth as places, without repeats."""
    return sorted({min(depth - 1, int(part * depth + 1e-9)) for part in parts})


def varied(one: Direction, space: Space, draw: random.Random) -> Direction:
    """A neighbour of a direction: at another size, with a method more or less, or with other weights of one.

    Args:
        one: the direction to vary.
        space: what plans are made from.
        draw: where chance comes from.
    """
    weights = {name: dict(given) for name, given in one.weights.items()}
    size, move = one.size, draw.random()
    if move < 0.15 and len(space.sizes) > 1:
        index = space.sizes.index(size) + draw.choice((-1, 1))
        size = space.sizes[min(max(index, 0), len(space.sizes) - 1)]
    elif move < 0.25 or not weights:
        weights = with_another(weights, space, draw)
    else:
        name = draw.choice(list(weights))
        weights[name] = _shaken(weights[name], space.choices[name], draw)
    return replace(one, size=size, weights=_scaled(weights, space))


def with_another(weights: Weights, space: Space, draw: random.Random) -> Weights:
    """One more method in a few blocks, or one less; never two that both change the number of tokens.

    Args:
        weights: which methods act where.
        space: what plans are made from.
        draw: where chance comes from.
    """
    if len(weights) > 1 and draw.random() < 0.4:
        gone = draw.choice(list(weights))
        return {name: given for name, given in weights.items() if name != gone}
    reduces = any(METHODS[name].acts_on == "tokens" for name in weights)
    free = [n for n in space.choices if n not in weights and not (reduces and METHODS[n].acts_on == "tokens")]
    if not free:
        return weights
    name = draw.choice(free)
    offered = space.choices[name]
    some = draw.sample(offered.blocks, min(len(offered.blocks), draw.randint(1, 4)))
    return {**weights, name: {block: _drawn(offered, draw, 0.3) for block in some}}


def _drawn(offered: Choices, draw: random.Random, least: float) -> float:
    """A weight at random: one of the steps where a method comes in steps, else any of at least so much."""
    return draw.uniform(least, 1.0) if offered.steps is None else draw.choice(offered.steps) / offered.most


def _shaken(weights: Mapping[int, float], offered: Choices, draw: random.Random) -> dict[int, float]:
    """Weights moved a little, moved to a neighbouring block, dropped or added."""
    blocks = offered.blocks
    new, move = dict(weights), draw.random()
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
        new[draw.choice(blocks)] = _drawn(offered, draw, 0.1)
    return {block: weight for block, weight in new.items() if weight > 0.02}


def _scaled(given: Weights, space: Space) -> Weights:
    """Without methods that act nowhere; the largest weight of those that follow the budget is 1."""
    acting = {name: weights for name, weights in given.items() if any(weights.values())}
    scaled = space.following_the_budget(acting)
    most = max((weight for name in scaled for weight in acting[name].values()), default=1.0)
    return {
        name: {block: weight / most if name in scaled else weight for block, weight in weights.items()}
        for name, weights in acting.items()
    }
