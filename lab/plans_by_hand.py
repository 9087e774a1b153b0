"""Plans that people make by hand: one method evenly, in the places that papers name, or fewer pixels."""

from collections.abc import Iterable, Iterator

from leanformer.search.directions import Direction
from leanformer.search.explore import Explorer
from leanformer.search.plan import Plan

OWN, EVERY = (224, 224), tuple(range(12))


def _even(name: str, blocks: Iterable[int], size: tuple[int, int] = OWN, counted: bool = False) -> Direction:
    return Direction(size, {name: dict.fromkeys(blocks, 1.0)}, counted)


BY_HAND: dict[str, Direction] = {
    "EViT in blocks 3, 6, 9": _even("evit", (3, 6, 9)),
    "EViT in nine blocks": _even("evit", range(3, 12)),
    "ToMe in blocks 3, 6, 9": _even("tome", (3, 6, 9)),
    "ToMe in every block, one number": _even("tome", EVERY, counted=True),
    "ToMe from the third block on, one number": _even("tome", EVERY[2:], counted=True),
    "208 px and ToMe in every block": _even("tome", EVERY, (208, 208), counted=True),
    "RePa in every block": _even("repa", EVERY),
    "SiT before blocks 3, 6, 9": _even("sit", (3, 6, 9)),
}
"""Name → direction; how strong it is follows from the time it may take."""


def by_hand(explorer: Explorer, budget: float) -> Iterator[tuple[str, Plan]]:
    """The plans made by hand that keep the budget as they are predicted."""
    for name, direction in BY_HAND.items():
        known = direction.size in explorer.space.sizes and direction.weights.keys() <= explorer.space.choices.keys()
        plan = explorer.within(budget, direction) if known else None
        if plan is not None and plan.shares:
            yield name, plan
    for size in explorer.space.sizes:
        if explorer.costs.predict(Plan(size)) <= budget:
            yield "fewer pixels", Plan(size)
            return
