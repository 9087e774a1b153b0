"""Fewer tokens, whatever the method: what a module that drops, merges or mixes tokens tells of what it did.

    decided = reducer.decision(…)                       inside the forward pass, where a hook can read it
    S = reducer.provenance(decided, tokens)             (B, M, N): how much of each old token a new one stands for
    T ← S T,  T₀ = 1                                    (B, M, P): the same over the patches of the image

B batch, N tokens that come in (without the prefix), M that leave, P patches of the image.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .block import blocks_of, slots_of
from .method import methods_on
from .objective import taps
from .optimised import plain_of

FUSED = -1
"""Stands for a token that is no single patch where patches are given by their numbers."""


@runtime_checkable
class Reducer(Protocol):
    """A slot module that drops, merges or mixes tokens.

    `decision` is the inner module whose output says what was decided for the images of a forward pass. `leaves_grid`
    is True where the tokens that leave lie in no known order, or the name of the arrangement they lie in.
    """

    leaves_grid: bool | str
    if TYPE_CHECKING:  # a child module is in no __dict__, and isinstance looks nowhere else from Python 3.12 on
        decision: nn.Module

    def provenance(self, decided: Tensor, tokens: int) -> Tensor:
        """Rows (B, M, N) over the `tokens` that came in: how much of each a token that left stands for.

        One for a token that is kept or merged, a share for one that is mixed in. The row of a token that stands for
        no place in particular (a fused rest) is zero.
        """
        ...


@runtime_checkable
class LeavesGrid(Protocol):
    """A module behind which tokens lie elsewhere: True for in no known order, or the name of an arrangement."""

    leaves_grid: bool | str


@runtime_checkable
class HandsOn(Protocol):
    """A token mixer that leaves channels beyond the block's width for the next block's token mixer: see `Block`."""

    hands_on: bool


@runtime_checkable
class NeedsGrid(Protocol):
    """A module that depends on where tokens lie: on the plane of patches (True), or on a named arrangement."""

    needs_grid: bool | str


@runtime_checkable
class Decision(Protocol):
    """A decision that rounding can tip: `margin` of its inputs says how far each image is from another one."""

    def margin(self, *inputs: Any) -> Tensor:
        """The gap (B,) between what was just taken and what just was not, relative to the size of the scores."""
        ...


@dataclasses.dataclass(frozen=True)
class NoMaps:
    """Stands in for `forward_intermediates` on a model whose tokens fill no plane any more, and refuses.

    It is an attribute of the one model: the model's class stays the backbone's own, and copies, pickles and state
    dicts are what they would be without it. It holds no reference to the model.
    """

    reducer: str
    """The module that leaves the plane first, as messages call it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            f"forward_intermediates gives maps of patches, but {self.reducer} drops, merges or mixes tokens; collect "
            "tokens with leanformer.core.taps(model, paths), and what they stand for with leanformer.core.traced"
        )


def refuse_maps(model: nn.Module) -> None:
    """Make `forward_intermediates` refuse on a model whose slots move tokens, and work again on one where none does.

    Args:
        model: a model with blocks, which is changed in place.
    """
    vars(model).pop("forward_intermediates", None)
    first = next(iter(moving(model)), None)
    if first is not None and hasattr(model, "forward_intermediates"):
        kind = type(model.get_submodule(first)).__name__
        model.forward_intermediates = NoMaps(f"{first} ({kind})")  # type: ignore[assignment]


def moving(model: nn.Module) -> dict[str, bool | str]:
    """Slot path → how tokens lie behind the module there, for modules that move them, in the order in which they run.

    True stands for no known order, a name for an arrangement: see `LeavesGrid`.

    Args:
        model: a model with blocks.
    """
    return {
        path: slot.leaves_grid
        for path, slot in slots_of(model).items()
        if isinstance(slot, LeavesGrid) and slot.leaves_grid
    }


def arrangements(model: nn.Module) -> dict[str, bool | str]:
    """Slot path → how tokens lie behind it: False while none was moved, else as the last module that moved them says.

    Args:
        model: a model with blocks.

    >>> import leanformer as lf
    >>> set(arrangements(lf.create("deit_tiny_patch16_224", depth=1)).values())
    {False}
    """
    moved, now, found = moving(model), False, {}
    for path in slots_of(model):
        found[path] = now = moved.get(path, now)
    return found


def same_tokens(one: Mapping[str, bool | str], other: Mapping[str, bool | str]) -> set[str]:
    """The slots behind which two models have the same tokens in the same order; equal numbers alone do not say that.

    Args:
        one: `arrangements` of the one model.
        other: those of the other.

    >>> same_tokens({"a": False, "b": "8 tokens", "c": True}, {"a": False, "b": "4 tokens", "c": True})
    {'a'}
    """
    return {path for path, order in one.items() if order is not True and order == other.get(path)}


def reducers(model: nn.Module) -> dict[str, Reducer]:
    """Slot path → the module there that reduces tokens, in the order in which they run."""
    return {path: slot for path, slot in slots_of(model).items() if isinstance(slot, Reducer)}


def decision_paths(model: nn.Module) -> list[str]:
    """Paths of the modules whose outputs `trace` reads; `taps(model, decision_paths(model))` collects them."""
    return [f"{path}.decision" for path in reducers(model)]


def trace(model: nn.Module, decided: dict[str, Tensor]) -> list[Tensor]:
    """What the tokens behind each reducer stand for, over the patches of the image: (B, M, P) each.

    Args:
        model: a model whose tokens some method reduces.
        decided: what each decision gave in one forward pass, by path; a reducer without one let all tokens pass.
    """
    refuse_untraceable(model)
    grid = next(iter(blocks_of(model).values())).grid
    assert grid is not None, "tokens are reduced in sequences alone, and those have a grid"
    some = next(iter(decided.values()), torch.zeros(1))
    rows = torch.eye(grid.size[0] * grid.size[1], device=some.device).expand(len(some), -1, -1)  # (B, P, P)
    history = []
    for path, reducer in reducers(model).items():
        if f"{path}.decision" in decided:
            rows = reducer.provenance(decided[f"{path}.decision"], rows.shape[1]).float() @ rows  # (B, M, P)
        history.append(rows)
    return history


def refuse_untraceable(model: nn.Module) -> None:
    """Refuse a model in which some module moves tokens and cannot say where they came from."""
    for path, slot in slots_of(model).items():
        if isinstance(slot, LeavesGrid) and not isinstance(slot, Reducer):
            raise ValueError(f"{path} ({type(slot).__name__}) mixes patches, so none can be traced")


def single_patches(rows: Tensor) -> Tensor:
    """Which patch each token is, (B, M) from rows (B, M, P); FUSED for a token of several patches or of none.

    >>> single_patches(torch.tensor([[[0.0, 1.0], [0.5, 0.5], [0.0, 0.0]]]))
    tensor([[ 1, -1, -1]])
    """
    most, patch = rows.max(-1)
    alone = (most == 1) & (rows.count_nonzero(-1) == 1)
    return torch.where(alone, patch, torch.full_like(patch, FUSED))


@torch.no_grad()
def traced(model: nn.Module, images: Tensor) -> list[Tensor]:
    """What the tokens behind each reducer stand for on these images: see `trace`.

    Args:
        model: a model whose tokens some method reduces.
        images: a batch as the model takes it.
    """
    model = plain_of(model)
    images = images.to(next(model.parameters()))
    paths = decision_paths(model)
    if not paths:
        raise ValueError(f"no method in this model drops patches or merges them; apply {methods_on('tokens')} first")
    with taps(model, paths) as decided:
        model(images)
    return [rows.expand(len(images), -1, -1) for rows in trace(model, decided)]


def kept_patches(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Which patches of these images are left as tokens of their own behind each place that drops or merges tokens.

    Args:
        model: a model whose tokens some method reduces.
        images: a batch as the model takes it.

    Returns:
        For each place the patches (B, M), numbered row by row over the plane of patches, in the order of the tokens
        there; FUSED (-1) for a token that stands for several patches.
    """
    return [single_patches(rows) for rows in traced(model, images)]


def decisions(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that decide which tokens go, in the order in which they run."""
    return [module for module in model.modules() if isinstance(module, Decision)]


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within the context, a forward pass leaves what each decision gave, in the order in which they ran."""
    seen: list[Tensor] = []
    with ExitStack() as hooks:
        for decision in decisions(model):
            hooks.enter_context(decision.register_forward_hook(lambda *call: seen.append(call[-1])))
        yield seen


@contextmanager
def held(model: nn.Module, given: Sequence[Tensor]) -> Iterator[None]:
    """Within the context, decisions give what another model's gave, so that only arithmetic differs between both.

    Decisions beyond those of the other model stay this model's own.
    """
    left = iter(given)
    with ExitStack() as hooks:
        for decision in decisions(model):
            hooks.enter_context(decision.register_forward_hook(lambda _, inputs, out: next(left, out)))
        yield


def differing(model: nn.Module, given: dict[str, Tensor], others: dict[str, Tensor]) -> Tensor:
    """For which images (B,) two passes left other tokens, whatever their order.

    Args:
        model: a model whose tokens some method reduces.
        given: what each decision gave in one pass, by path, as `taps(model, decision_paths(model))` collects it.
        others: the same of another pass over these images.
    """
    followed = all(isinstance(reducer.decision, Decision) for reducer in reducers(model).values())
    if followed:
        series = [[rows.mT @ rows for rows in trace(model, decided)] for decided in (given, others)]  # (B, P, P) each
    else:  # a method mixes tokens softly, so that none can be followed to the end
        series = [[each.sort(-1).values for each in decided.values()] for decided in (given, others)]
    return torch.stack([(a - b).flatten(1).abs().amax(1) > 0 for a, b in zip(*series, strict=True)]).any(0)
