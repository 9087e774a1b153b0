"""A plan says what a lean model is: an input size, and which share each method takes in which block.

    plan = {size 208, one: {3: 0.12, 4: 0.12, …}, other: {9: 0.5}}     →  apply(resize(teacher, 208), One(…), Other(…))

Plans are values: hashable, comparable, written to JSON as they are.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..backbones import resize
from ..core import METHODS, Choices, Method, apply, blocks_of, input_of

Shares = tuple[tuple[int, float], ...]
"""(block, share) for the blocks in which a method acts, in order."""


@dataclass(frozen=True)
class Plan:
    """What to change in a model.

    Attributes:
        size: height and width of the images.
        shares: name of a method → its share in each block where it acts.

    >>> str(Plan((224, 224)))
    '224 px'
    """

    size: tuple[int, int]
    shares: tuple[tuple[str, Shares], ...] = ()

    @classmethod
    def of(cls, size: tuple[int, int], shares: Mapping[str, Mapping[int, float]]) -> "Plan":
        """The plan with these shares, those of nothing left out and rounded to a thousandth."""
        rounded = {
            name: tuple((block, round(share, 3)) for block, share in sorted(given.items()) if round(share, 3) > 0)
            for name, given in sorted(shares.items())
        }
        return cls(size, tuple((name, given) for name, given in rounded.items() if given))

    def of_method(self, name: str) -> dict[int, float]:
        """Block → share of one method; empty where it takes no part."""
        return dict(dict(self.shares).get(name, ()))

    def acting_on(self, part: str) -> dict[int, tuple[str, float]]:
        """Block → the method that makes this part cheaper there ('tokens', 'ffn', 'mixer') and its share."""
        return {
            block: (name, share)
            for name, given in self.shares
            if METHODS[name].acts_on == part
            for block, share in given
        }

    def reducing(self, slot: str) -> dict[int, tuple[str, float]]:
        """Block → the method that makes tokens fewer there in this slot ('pre', 'mix') and its share."""
        return {
            block: (name, share)
            for block, (name, share) in self.acting_on("tokens").items()
            if METHODS[name].reduces_in == slot
        }

    def methods(self) -> tuple[Method, ...]:
        """The methods with their options."""
        return tuple(METHODS[name].with_shares(dict(shares)) for name, shares in self.shares)

    def build(self, teacher: nn.Module) -> nn.Module:
        """The lean model, not fitted and not trained; the teacher stays as it is.

        Args:
            teacher: the adopted model that the plan was made for.
        """
        size = tuple(input_of(teacher)["input_size"][1:])
        base = teacher if size == self.size else resize(teacher, self.size)
        return apply(base, *self.methods())

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values; `from_json` reads them."""
        shares = {name: {str(block): share for block, share in given} for name, given in self.shares}
        return {"size": list(self.size), "shares": shares}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Plan":
        """The plan that `to_json` wrote."""
        shares = {
            name: {int(block): float(share) for block, share in given.items()} for name, given in data["shares"].items()
        }
        return cls.of((int(data["size"][0]), int(data["size"][1])), shares)

    def __str__(self) -> str:
        """In a line, as people read it."""
        parts = [f"{self.size[0]} px" if self.size[0] == self.size[1] else f"{self.size[0]} x {self.size[1]} px"]
        for name, given in self.shares:
            told = ", ".join(f"{block}: {share:.0%}" for block, share in given)
            parts.append(f"{METHODS[name].__name__} {{{told}}}")
        return " + ".join(parts)


@dataclass(frozen=True)
class Space:
    """Everything that a search may choose from, for one model.

    Attributes:
        sizes: input sizes, the model's own first.
        choices: name of a method → what it offers there.
        model: the model itself.
    """

    sizes: tuple[tuple[int, int], ...]
    choices: dict[str, Choices]
    model: nn.Module

    def without_clashes(self, shares: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
        """The shares without those token mixers to be removed that a method needs to make tokens fewer.

        Args:
            shares: name of a method → block → share above 0.
        """
        kept = {name: {block: share for block, share in given.items() if share > 0} for name, given in shares.items()}
        reducing = [name for name in self.reducing("mix") if kept.get(name)]
        removing = [name for name in kept if METHODS[name].acts_on == "mixer"]
        if reducing and removing:
            needed = {path for name in reducing for path in METHODS[name].with_shares(kept[name]).swaps(self.model)}
            paths = list(blocks_of(self.model))
            for name in removing:
                kept[name] = {block: s for block, s in kept[name].items() if f"{paths[block]}.mix" not in needed}
        return kept

    def following_the_budget(self, names: Iterable[str]) -> list[str]:
        """Those of a plan's methods whose strength the budget sets: which take any share, or all where none does.

        What comes in a few steps keeps its share beside them, else it would be rounded to nothing.
        """
        every = list(names)
        return [name for name in every if self.choices[name].steps is None] or every

    def acting_on(self, kind: str) -> list[str]:
        """Names of the methods that make this cheaper: 'tokens', 'ffn' or 'mixer'."""
        return [name for name in self.choices if METHODS[name].acts_on == kind]

    def reducing(self, slot: str) -> list[str]:
        """Names of the methods that make tokens fewer in this slot of a block: 'pre' or 'mix'."""
        return [name for name in self.acting_on("tokens") if METHODS[name].reduces_in == slot]


def space_of(model: nn.Module, methods: Iterable[str] | None = None, sizes: bool = True) -> Space:
    """What can be searched on a model: every method that serves it, and smaller images where it can be resized.

    Args:
        model: an adopted backbone without methods.
        methods: only these methods, by name; None for all that offer choices.
        sizes: whether smaller images are among the choices.

    >>> import leanformer as lf
    >>> len(space_of(lf.create("deit_tiny_patch16_224")).choices)
    5
    """
    names = list(METHODS) if methods is None else list(methods)
    for name in names:
        if name not in METHODS:
            raise ValueError(f"unknown method '{name}'; known methods: {', '.join(sorted(METHODS))}")
    offered = {name: _offered(name, model) for name in names}
    found = {name: choices for name, choices in offered.items() if choices is not None}
    for name in methods or ():
        if name not in found:
            raise ValueError(f"{name} offers nothing to search on this model; those that do: {_offering(model)}")
    return Space(_sizes(model) if sizes else _sizes(model)[:1], found, model)


def _offered(name: str, model: nn.Module) -> Choices | None:
    """What a method offers there; fewer tokens only where a block behind would have less to do."""
    if METHODS[name].acts_on == "tokens" and len(blocks_of(model)) < 2:
        return None
    return METHODS[name].choices(model)


def _offering(model: nn.Module) -> str:
    """Names of the methods that can be searched on a model, for people."""
    return ", ".join(name for name in METHODS if _offered(name, model) is not None) or "none"


def _sizes(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """The model's own image size, and smaller ones by a patch each, down to a little more than half of it."""
    height, width = input_of(model)["input_size"][1:]
    grid = next(iter(blocks_of(model).values())).grid
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if grid is None or not isinstance(patch, tuple) or not hasattr(model, "pos_embed") or height != width:
        return ((height, width),)
    step = math.lcm(*patch)  # a patch need not be a square
    return tuple((side, side) for side in range(height, height // 2, -step))
