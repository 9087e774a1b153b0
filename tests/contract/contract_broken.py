"""The example method, broken in every way that a method can be: each entry of BROKEN must fail its check."""

import copy
import dataclasses
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from contract_example import Gain, GainBranch, gain_shape
from torch import Tensor, nn

from leanformer.core import METHODS, Block, Branch, Method, blocks_of

BROKEN: dict[str, tuple[str, type[Gain], str]] = {}
"""What is broken → the check that must fail, the broken method, a part of the message."""
_calls = itertools.count(1)


def broken(check: str, message: str) -> Callable[[type], type]:
    """Register a broken branch (put into the example method) or a broken method."""

    def note(cls: type) -> type:
        what = cls.__name__
        method: type[Any] = cls
        if issubclass(cls, nn.Module):

            class method(Gain, name=what):  # type: ignore[no-redef]
                module = cls

        METHODS.pop(method.name)
        method.__name__ = method.__qualname__ = f"{what}Method"
        globals()[method.__name__] = method  # a method must be importable to be pickled
        method.__module__ = __name__
        BROKEN[what] = (check, method, message)
        return cls

    return note


@broken("apply_leaves_the_backbone_alone", "weights changed")
class SwapsInPlace(Gain, name="SwapsInPlace"):
    def swaps(self, model: nn.Module) -> dict[str, Any]:
        next(model.parameters()).data.add_(1.0)
        return super().swaps(model)


@broken("apply_leaves_the_backbone_alone", "different weights")
class CountsItsCalls(GainBranch):
    def __init__(self, gain: nn.Parameter, **parts: Any):
        super().__init__(nn.Parameter(gain.data * next(_calls)), **parts)


@broken("off_is_bit_equal", "outputs differ")
class OffIsOn(Gain, name="OffIsOn"):
    def off(self) -> Any:
        return self


@broken("off_is_bit_equal", "outputs differ")
class OffIsNear(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        return self.norm(x) * (self.gain + 1e-7)


@broken("off_is_bit_equal", "gradients differ")
class OffStopsGradients(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        return self.norm(x.detach()) * self.gain


@broken("off_is_bit_equal", "training=True")
class OffDropsInTraining(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().gained(x), 0.5, self.training)


@broken("gradients_reach_every_parameter", "gets no gradient")
class ForgetsItsParameter(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        return self.norm(x) * self.gain.detach()


@broken("gradients_reach_every_parameter", "is zero")
class MultipliesByZero(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        return self.norm(x) * (1 + 0 * self.gain)


@broken("gradients_reach_every_parameter", "not finite")
class DividesByZero(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        return super().gained(x) + (self.gain - self.gain).abs().sqrt()


@broken("gradient_checkpointing_changes_nothing", "statistics .* differ")
class CountsRecomputations(GainBranch):
    def __init__(self, gain: nn.Parameter, **parts: Any):
        super().__init__(gain, **parts)
        self.register_buffer("seen", torch.zeros(()))

    def gained(self, x: Tensor) -> Tensor:
        self.seen += 1
        return super().gained(x)


@broken("gradient_checkpointing_changes_nothing", "gradient of .* differs")
class GainsByTurns(GainBranch):
    calls = 0

    def gained(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().gained(x) * self.calls


@broken("intermediates_are_maps_or_refused", "maps of moved tokens")
class DropsWithoutAWord(GainBranch):
    def forward(self, x: Tensor, **mask: Any) -> Tensor:
        return super().forward(x, **mask)[:, : 1 + (x.shape[1] - 1) // 2]


@broken("two_threads_give_the_same_answers", "in two threads")
class ParksItsState(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        self.parked = super().gained(x)
        time.sleep(0.002)  # the other thread comes in
        return self.parked


@broken("fuse_is_exact_and_never_in_place", "fusing changed the outputs")
class FusesWrongly(GainBranch):
    def fused(self) -> Branch:
        return Branch(**copy.deepcopy(self.parts()))


@broken("fuse_is_exact_and_never_in_place", "fusing changed the outputs")
class FusesInFloat32(GainBranch):
    def fused(self) -> Branch:
        branch = super().fused()
        return branch.float().to(self.gain.dtype)


@broken("fuse_is_exact_and_never_in_place", "larger")
class FusesToMore(GainBranch):
    def fused(self) -> Any:
        branch = super().fused()
        branch.register_buffer("spare", torch.zeros(2 * self.gain.numel()))
        return branch


@broken("fused_structure_depends_on_structure_alone", "depend")
class FusesByValue(GainBranch):
    def fused(self) -> Branch:
        branch = super().fused()
        return branch if self.gain.any() else Branch(**{**branch.parts(), "norm": nn.Identity()})


@broken("save_and_load_are_bit_equal", "outputs differ after load")
class KeepsStateOutsideTheStateDict(GainBranch):
    def __init__(self, gain: nn.Parameter, **parts: Any):
        super().__init__(gain, **parts)
        self.factor = 1.0 + next(_calls)

    def gained(self, x: Tensor) -> Tensor:
        return super().gained(x) * self.factor

    def fused(self) -> Branch:
        branch = super().fused()
        for parameter in branch.norm.parameters():
            parameter.data.mul_(self.factor)
        return branch


@broken("any_batch_size", "not close")
class MixesTheBatch(GainBranch):
    fused: Any = None  # type: ignore[assignment]

    def gained(self, x: Tensor) -> Tensor:
        return super().gained(x - x.mean(0, keepdim=True))


@broken("deepcopy_and_pickle", "local object 'StoresALambda")
class StoresALambda(GainBranch):
    def __init__(self, gain: nn.Parameter, **parts: Any):
        super().__init__(gain, **parts)
        self.act = lambda x: x

    def gained(self, x: Tensor) -> Tensor:
        return self.act(super().gained(x))


@broken("half_precision", "same dtype")
class MixesDtypes(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        return super().gained(x) * torch.ones(1, x.shape[-1])


@broken("half_precision", "not finite")
class OverflowsInHalf(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        return super().gained(x) * 1e30 / 1e30


@broken("compiles_without_breaks_or_recompiles", "data-dependent")
class LooksAtValues(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        y = super().gained(x)
        return y if float(y.sum()) > 0 else y * 2


@broken("compiles_without_breaks_or_recompiles", "recompil")
class CountsForwards(GainBranch):
    forwards = 0

    def gained(self, x: Tensor) -> Tensor:
        self.forwards += 1
        return super().gained(x) * (1 if self.forwards > 0 else 2) + 0 * self.forwards


@broken("exports_with_any_batch", "specialized")
class FixesTheBatch(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        return super().gained(x) + torch.zeros(int(x.shape[0])).sum()


@broken("options_survive_json", "not JSON")
@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldsASet(Gain, name="HoldsASet"):
    kinds: frozenset[str] = frozenset({"a"})


@broken("options_survive_json", "DID NOT RAISE")
class IsNotFrozen(Gain, name="IsNotFrozen"):
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@broken("wrong_options_are_refused", "DID NOT RAISE")
class SwallowsOptions(Gain, name="SwallowsOptions"):
    def replace(self, **changes: Any) -> Any:
        return dataclasses.replace(self, **{k: v for k, v in changes.items() if k in self.fields()})


@broken("wrong_options_are_refused", "DID NOT RAISE")
class IgnoresUnknownBlocks(Gain, name="IgnoresUnknownBlocks"):
    def swaps(self, model: nn.Module) -> dict[str, Any]:
        chosen = tuple(i for i in self.blocks or () if i < len(blocks_of(model)))
        return self.replace(blocks=chosen)._known(model)

    def _known(self, model: nn.Module) -> dict[str, Any]:
        return super().swaps(model)


@broken("wrong_options_are_refused", "DID NOT RAISE")
class SkipsTakenSlots(Gain, name="SkipsTakenSlots"):
    def swaps(self, model: nn.Module) -> dict[str, Any]:
        plan = super().swaps(model)
        return {path: build for path, build in plan.items() if not isinstance(model.get_submodule(path), GainBranch)}


@broken("run_time_options_share_the_weights", "not shared")
class RebuildsItsWeights(Gain, name="RebuildsItsWeights"):
    runtime = frozenset({"strength"})

    def _build(self, old: Any, shape: tuple[int, ...]) -> nn.Module:
        gain = old.gain.detach().clone() if isinstance(old, GainBranch) else torch.ones(shape) + self.strength
        return GainBranch(nn.Parameter(gain), **old.parts())


class OtherGain(Gain, name="other_gain"):
    """The example in the second block: a partner to compose with."""

    blocks: tuple[int, ...] | None = (1,)

    def swaps(self, model: nn.Module) -> dict[str, Any]:
        return self.replace(blocks=(1,))._second(model)

    def _second(self, model: nn.Module) -> dict[str, Any]:
        return Gain.swaps(self, model)


METHODS.pop("other_gain")


class _Doubled(GainBranch):
    def gained(self, x: Tensor) -> Tensor:
        return super().gained(x) * 2


class LooksAtNeighbours(Gain, name="looks_at_neighbours"):
    """Builds something else where another method has been: the order shows in the outputs."""

    def swaps(self, model: nn.Module) -> dict[str, Any]:
        block: Block = list(blocks_of(model).values())[1]
        kind = _Doubled if isinstance(block.mix, GainBranch) else GainBranch
        places = super().swaps(model)
        shape = gain_shape(block.layout, block.dim)
        return {path: partial(_make, kind, shape) for path in places}


class RefusesSecond(Gain, name="refuses_second"):
    """Refuses a model that another method has changed, and not the other way round."""

    def swaps(self, model: nn.Module) -> dict[str, Any]:
        if any(isinstance(block.mix, GainBranch) for block in blocks_of(model).values()):
            raise ValueError("this model has been changed by another method before")
        return super().swaps(model)


class RefusesSilently(Gain, name="refuses_silently"):
    """Refuses without a reason."""

    def swaps(self, model: nn.Module) -> dict[str, Any]:
        raise ValueError("no")


def _make(kind: type[GainBranch], shape: tuple[int, ...], old: Branch) -> nn.Module:
    return kind(nn.Parameter(torch.ones(shape) * 1.1), **old.parts())


ORDERED: dict[str, type[Method]] = {m.name: m for m in (LooksAtNeighbours, RefusesSecond)}
for _name in (*ORDERED, RefusesSilently.name):
    METHODS.pop(_name)
