"""What a plan costs on this device: the sum of its parts, each timed here in the form that will run.

    T(plan) = outside(size) + Σ_blocks f(N) · ( seam(N₀, share) + mix(N) + overhead of the reduction ) + f(N') · ffn(N')

A part is timed at a few token counts and interpolated between them. `f` makes the sum of the unchanged model's parts
what the unchanged model really takes at each image size that was timed, each of which is another number of tokens; what
lies outside of blocks follows from the model with one block alone.
Tokens become fewer behind the token mixer of a block, at an overhead, or in the seam before it, by a part of its own.
N₀ tokens that come to a block, N into its token mixer, N' behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core import METHODS
from .plan import Plan

Curve = tuple[list[int], list[float]]
"""Token counts, and the seconds at them."""
LAST = "its last block alone"
"""The name of a model without its other blocks. Without any, its answer might not depend on the image."""
MOST_OUTSIDE = 0.9
"""Of a model's time at most; of a tiny model it may be noise."""


@dataclass
class Costs:
    """Seconds a batch of every part, by what it is; `predict` adds them up for a plan.

    Attributes:
        parts: (part, kind of block, variant) → token counts and the seconds at them.
        overheads: method that makes tokens fewer behind the token mixer → what a block that does so takes more, and
            what each block behind it does.
        seams: method that makes tokens fewer in the seam before a block → (share, what that takes there), the smallest
            share first.
        outside: image size → seconds of what is not in a block (embedding, norm, head).
        factors: shares of the tokens that a block has in the unchanged model at its own size, and what the seconds of
            its parts are multiplied by where it has so many.
        kinds: block → its kind: blocks of one structure and width are timed once.
        tokens: image size → tokens into each block, for the unchanged model; its own size is the first.
        prefix: tokens that are no patches.
    """

    parts: dict[tuple[str, int, str], Curve] = field(default_factory=dict)
    overheads: dict[str, tuple[Curve, Curve]] = field(default_factory=dict)
    seams: dict[str, list[tuple[float, Curve]]] = field(default_factory=dict)
    outside: dict[tuple[int, int], float] = field(default_factory=dict)
    factors: tuple[list[float], list[float]] = field(default_factory=lambda: ([1.0], [1.0]))
    kinds: list[int] = field(default_factory=list)
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    prefix: int = 0

    def part(self, name: str, block: int, variant: str, tokens: int) -> float:
        """Seconds of one part of one block at so many tokens."""
        counts, seconds = self.parts[name, self.kinds[block], variant]
        if len(counts) == 1:
            return seconds[0] * tokens / counts[0]
        if counts[0] <= tokens <= counts[-1]:
            return float(np.interp(tokens, counts, seconds))
        end, next_to_it = (0, 1) if tokens < counts[0] else (-1, -2)
        slope = (seconds[end] - seconds[next_to_it]) / (counts[end] - counts[next_to_it])
        return max(0.0, seconds[end] + slope * (tokens - counts[end]))  # a little beyond what was timed

    def seam(self, name: str, share: float, tokens: int) -> float:
        """Seconds that a method takes in the seam before a block for this share of so many tokens."""
        shares, curves = zip(*self.seams[name])
        return float(np.interp(share, shares, [np.interp(tokens, *curve) for curve in curves]))

    def factor(self, block: int, tokens: int) -> float:
        """What the parts of a block take in a whole model, over what they take alone, at so many tokens."""
        return float(np.interp(tokens / next(iter(self.tokens.values()))[block], *self.factors))

    def predict(self, plan: Plan) -> float:
        """Seconds a batch of the plan's model, fused and optimised.

        Args:
            plan: what is changed.
        """
        return self.seconds(plan, tokens_by_block(plan, self.tokens[plan.size], self.prefix))

    def seconds(self, plan: Plan, left: Sequence[tuple[int, int]]) -> float:
        """Seconds a batch of the plan's model when so many tokens are left.

        Args:
            plan: what is changed.
            left: tokens that come to each block, and those behind its token mixer.
        """
        ffn, gone, seams = plan.acting_on("ffn"), plan.acting_on("mixer"), plan.reducing("pre")
        reducing = plan.reducing("mix")
        first = min(reducing, default=len(left))
        total = self.outside[plan.size]
        for block, (before, behind) in enumerate(left):
            mixed = behind if block in seams else before
            front = self.part("mix", block, "gone" if block in gone else "", mixed)
            if block in seams:
                front += self.seam(*seams[block], before)
            if block >= first:
                counts, seconds = self.overheads[reducing.get(block, reducing[first])[0]][0 if block in reducing else 1]
                front += float(np.interp(before, counts, seconds))
            ffn_behind = self.part("ffn", block, f"{ffn[block][1]:g}" if block in ffn else "", behind)
            total += self.factor(block, mixed) * front + self.factor(block, behind) * ffn_behind
        return total

    def to_json(self) -> dict[str, Any]:
        """The table as plain JSON values; `from_json` reads them."""
        return {
            "parts": [[*key, *value] for key, value in self.parts.items()],
            "overheads": {name: list(curves) for name, curves in self.overheads.items()},
            "seams": {name: [[share, *curve] for share, curve in timed] for name, timed in self.seams.items()},
            "outside": [[*size, seconds] for size, seconds in self.outside.items()],
            "tokens": [[*size, counts] for size, counts in self.tokens.items()],
            "kinds": self.kinds, "prefix": self.prefix, "factors": self.factors,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Costs":
        """The table that `to_json` wrote."""
        return cls(
            parts={(part, kind, variant): (counts, seconds) for part, kind, variant, counts, seconds in data["parts"]},
            overheads={name: (tuple(a), tuple(b)) for name, (a, b) in data["overheads"].items()},  # type: ignore[misc]
            seams={
                name: [(share, (counts, seconds)) for share, counts, seconds in timed]
                for name, timed in data.get("seams", {}).items()
            },
            outside={(height, width): seconds for height, width, seconds in data["outside"]},
            tokens={(height, width): counts for height, width, counts in data["tokens"]},
            kinds=data["kinds"], prefix=data["prefix"], factors=tuple(data["factors"]),
        )  # fmt: skip


def tokens_by_block(plan: Plan, tokens: Sequence[int], prefix: int) -> list[tuple[int, int]]:
    """Tokens that come to each block, and those behind its token mixer.

    Args:
        plan: what is changed.
        tokens: tokens into each block of the unchanged model at the plan's size.
        prefix: how many of them are no patches.

    >>> tokens_by_block(Plan((32, 32)), [17, 17, 17], 1)
    [(17, 17), (17, 17), (17, 17)]
    """
    reducing, counts, gone = plan.acting_on("tokens"), [], 0
    for block, full in enumerate(tokens):
        before = full - gone
        behind = before
        if block in reducing:
            name, share = reducing[block]
            behind = prefix + METHODS[name].tokens_left(share, before - prefix)
        gone += before - behind
        counts.append((before, behind))
    return counts


def fit_to_whole_models(costs: Costs, seconds: Mapping[Any, float]) -> None:
    """Let predictions agree with whole unchanged models, at every image size at which one was timed.

    What lies outside of blocks follows from the model as it is and with one block alone, and is in proportion to the
    pixels at other sizes. All else that a whole model takes is its blocks', so that it tells what parts take in company
    at its number of tokens: a GPU works in tiles, and a few tokens more can take a third more time.

    Args:
        costs: changed in place.
        seconds: image size → what the whole unchanged model takes a batch there; at least its own size. `LAST` → what
            it takes with its last block alone; nothing lies outside of blocks where that is not known.
    """
    sizes = list(costs.tokens)
    own = sizes[0]
    costs.outside, costs.factors = dict.fromkeys(sizes, 0.0), ([1.0], [1.0])
    blocks = {size: costs.predict(Plan(size)) for size in sizes}
    outside = 0.0
    if LAST in seconds:
        tokens, last = costs.tokens[own][-1], len(costs.kinds) - 1
        others = blocks[own] - costs.part("mix", last, "", tokens) - costs.part("ffn", last, "", tokens)
        a_block = (seconds[own] - seconds[LAST]) / others  # for each second of its parts
        outside = min(MOST_OUTSIDE * seconds[own], max(0.0, seconds[own] - a_block * blocks[own]))
    for height, width in sizes:
        costs.outside[height, width] = outside * height * width / (own[0] * own[1])
    timed = sorted(
        (sum(costs.tokens[size]) / sum(costs.tokens[own]), (seconds[size] - costs.outside[size]) / blocks[size])
        for size in sizes
        if size in seconds
    )
    shares, factors = zip(*timed)
    costs.factors = list(shares), list(factors)
