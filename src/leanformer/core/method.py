"""A method is a small frozen config that says which slots it swaps; everything else follows from that.

    method.swaps(model) → {"blocks.3.mix": build, …}        build(old slot module) → new slot module

`apply` checks the claims of all methods, builds, and swaps. A module with `fused()` folds into what it returns.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from torch import nn

from ..fields import check_fields, check_value, hints_of
from ..lazy import METHODS as register
from ..lazy import Register
from .block import Block, Slot, blocks_of
from .choices import Choices, Part
from .objective import Objective
from .rewrite import LocalRewrite
from .spec import parse_spec, refuse_unknown

Build = Callable[[nn.Module], nn.Module]
METHODS: Register[type["Method"]] = register


@runtime_checkable
class Fusible(Protocol):
    """A module that knows its smaller equivalent in evaluation mode: same function, computed in its own dtype."""

    def fused(self) -> nn.Module: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """Base of all methods. A subclass names itself, `class Mine(Method, name="mine")`, and is then known everywhere.

    Its options are checked by their types and by the ranges beside these (`leanformer.fields`).

    >>> class Nothing(Method, name="nothing"):
    ...     def swaps(self, model):
    ...         return {}
    >>> METHODS.pop("nothing")()
    Nothing()
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    runtime: ClassVar[frozenset[str]] = frozenset()
    """Fields that `with_options` may change on a trained model, because no weight depends on them."""
    acts_on: ClassVar[Part | None] = None
    """What the method makes cheaper, for a search; None where it offers no choices."""
    reduces_in: ClassVar[Literal["pre", "mix"]] = "mix"
    """Where a method that acts on tokens makes them fewer: behind a block's token mixer ('mix'), or in the seam before
    the block ('pre'), so that its token mixer has fewer already."""

    def __init_subclass__(cls, name: str, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls.name = name
        METHODS[name] = cls

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, _hashable(value))
        check_fields(self, of=f"{self.name}: ")

    def swaps(self, model: nn.Module) -> dict[str, Build]:
        """Slot path → a function that builds the new slot module from the old one."""
        raise NotImplementedError(f"{type(self).__name__} does not say which slots it swaps")

    def off(self) -> Self:
        """The same method at its neutral setting, which leaves the backbone's outputs bit-equal."""
        raise NotImplementedError(f"{type(self).__name__} has no neutral setting")

    def advance(self, model: nn.Module, epoch: float) -> dict[str, float]:
        """Set what changes during training (a keep rate, say) for this moment; the values go to the log."""
        return {}

    def objective(self, student: nn.Module, teacher: nn.Module | None) -> Objective | None:
        """The method's own training objective with its paper's weights, or None if it needs none."""
        return None

    @classmethod
    def rewrites(cls) -> tuple[LocalRewrite, ...]:
        """Fast forms of the method's own modules after fuse; `lf.optimize` tries them on every model."""
        return ()

    def serves(self, model: nn.Module) -> bool:
        """Whether the method can be applied to this model."""
        try:
            self.swaps(model)
        except ValueError:
            return False
        return True

    @classmethod
    def choices(cls, model: nn.Module) -> Choices | None:
        """What a search may try on this model; None where the method does not serve it, or offers nothing.

        Args:
            model: an adopted backbone without methods.
        """
        return None

    @classmethod
    def with_shares(cls, shares: Mapping[int, float]) -> Self:
        """The method that acts with these shares in these blocks: see `Choices`.

        Args:
            shares: block, counted from 0, → share above 0.
        """
        raise NotImplementedError(f"{cls.__name__} offers no choices")

    @classmethod
    def tokens_left(cls, share: float, tokens: int) -> int:
        """How many patch tokens leave a block in which this share of `tokens` goes.

        Args:
            share: of the patch tokens that come in, 0 to the most of the method's `Choices`.
            tokens: patch tokens that come in.
        """
        return tokens

    def replace(self, **changes: Any) -> Self:
        """A copy with other options; an unknown one is refused."""
        _refuse_unknown(type(self), changes)
        return dataclasses.replace(self, **changes)

    def fields(self) -> dict[str, Any]:
        """The options as plain JSON values."""
        return {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}


def method_from(name: str, options: dict[str, Any]) -> Method:
    """The method called `name` with these options.

    >>> import leanformer
    >>> method_from("token_mixer", {"mixer": "identity"}).mixer
    'identity'
    """
    if name not in METHODS:
        raise ValueError(f"unknown method '{name:.60}'; known methods: {', '.join(sorted(METHODS))}")
    _refuse_unknown(METHODS[name], options)
    options = {key: _hashable(value) for key, value in options.items()}
    for key, value in options.items():
        check_value(f"{name}: {key}", value, hints_of(METHODS[name])[key])
    return METHODS[name](**options)


def methods_on(part: Part) -> str:
    """The methods that make this part of a model cheaper, as a message to the user names them."""
    return " or ".join(sorted(f"lf.{method.__name__}" for method in METHODS.values() if method.acts_on == part))


def parse_method(spec: str) -> Method:
    """A method written as on the command line: `name` or `name:option=value,option=value`.

    >>> import leanformer
    >>> parse_method("token_mixer:mixer=pooling,blocks=(3,6,9)").blocks
    (3, 6, 9)
    """
    return method_from(*parse_spec(spec))


def select(
    model: nn.Module, slot: Slot, blocks: Sequence[int] | None = None, stages: Sequence[int] | None = None
) -> dict[str, Block]:
    """Slot path → block for the blocks (0-based over the whole depth) and stages chosen; None chooses all.

    >>> import leanformer as lf
    >>> list(select(lf.create("deit_tiny_patch16_224"), "mix", blocks=(0, 3)))
    ['blocks.0.mix', 'blocks.3.mix']
    """
    every = blocks_of(model)
    if not every:
        raise ValueError(f"{type(model).__name__} has no leanformer blocks; pass it through lf.adopt first")
    _within("block", blocks, range(len(every)))
    _within("stage", stages, range(max(b.stage for b in every.values()) + 1))
    chosen = {
        f"{path}.{slot}": block
        for index, (path, block) in enumerate(every.items())
        if (blocks is None or index in blocks) and (stages is None or block.stage in stages)
    }
    for path, block in chosen.items():
        if slot not in block.slots:
            raise ValueError(f"{path}: {type(model).__name__} blocks have no '{slot}' slot, only {block.slots}")
    return chosen


def refuse_unordered(option: str, places: Sequence[int] | None) -> None:
    """Refuse blocks or stages that do not rise, so that values given one for each of them go where the user means.

    Args:
        option: what the method calls the places.
        places: numbers of blocks or stages, or None.

    >>> refuse_unordered("at", (6, 3))
    Traceback (most recent call last):
    ValueError: at is (6, 3); give different numbers in rising order, counted from 0, e.g. (3, 6, 9)
    """
    if places is not None and list(places) != sorted(set(places)):
        raise ValueError(
            f"{option} is {places}; give different numbers in rising order, counted from 0, e.g. (3, 6, 9)"
        )


def _within(what: str, chosen: Collection[int] | None, allowed: range) -> None:
    wrong = [i for i in chosen or () if i not in allowed]
    if wrong:
        raise ValueError(f"{what} {wrong[0]} does not exist; this model has {what}s 0 to {allowed.stop - 1}")


def _refuse_unknown(cls: type[Method], options: Collection[str]) -> None:
    refuse_unknown(cls.name, options, [f.name for f in dataclasses.fields(cls)])


def plain(value: Any) -> Any:
    """A value as it comes back from JSON: tuples are lists there.

    >>> plain((1, (2, 3)))
    [1, [2, 3]]
    """
    return [plain(v) for v in value] if isinstance(value, tuple | list) else value


def _hashable(value: Any) -> Any:
    return tuple(_hashable(v) for v in value) if isinstance(value, list | tuple) else value
