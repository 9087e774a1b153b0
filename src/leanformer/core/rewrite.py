"""A rewrite takes a fused model to an equivalent one that a device may run faster; methods bring their own.

`lf.optimize` collects the rewrites that no method owns and those of every method, tries them, and keeps what pays.
Most are local: they replace single modules by others that compute the same, so their gain can be timed on a module
alone.
"""

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

H200 = ("NVIDIA H200",)
"""The chips that the measurements in docs/performance.md were made on."""


@runtime_checkable
class ThreeProducts(Protocol):
    """A fused FFN that is gelu(x W_inᵀ + b_in) W_outᵀ + x Wᵀ + b of its input, and tells its weights.

    So a fast form of one method can take in another method's FFN without knowing that method.
    """

    def three_products(self) -> tuple[Tensor, ...] | None:
        """W (C, C), b, W_in (R, C), b_in and W_out (C, R), or None where the FFN is something else after all."""
        ...


@dataclass(frozen=True)
class AnyRewrite:
    """What every rewrite says of itself.

    A step is taken without timing it only where runs on that chip showed a gain for the kinds of models it names
    (docs/performance.md); everywhere else it is timed first.

    Attributes:
        name: what reports and cards call the step.
        measured_on: the chips on which it was measured to pay.
        pays_for: says of a fused model whether it is of the kind that gained there.
    """

    name: str
    measured_on: Collection[str] = field(default=(), kw_only=True)
    pays_for: Callable[[nn.Module], bool] = field(default=lambda model: True, kw_only=True)

    def pays(self, chip: str, model: nn.Module) -> bool:
        """Whether the step was measured to make models like this one faster on this chip.

        Args:
            chip: the device's name.
            model: the fused model.

        >>> step = AnyRewrite("patches by product", measured_on=("NVIDIA H200",))
        >>> step.pays("NVIDIA H200", nn.Identity()), step.pays("cpu", nn.Identity())
        (True, False)
        """
        return chip in self.measured_on and self.pays_for(model)


@dataclass(frozen=True)
class Rewrite(AnyRewrite):
    """One step towards the fastest form, of the model as a whole.

    Attributes:
        apply: model → an equivalent copy, or None where there is nothing to do.
    """

    apply: Callable[[nn.Module], nn.Module | None]


@dataclass(frozen=True)
class LocalRewrite(AnyRewrite):
    """One step towards the fastest form that replaces modules, each by itself.

    Attributes:
        fits: says of a module whether it can be replaced.
        build: makes the new module from the old one, whose weights it may take over.
        not_inside: kinds of modules whose inner modules stay as they are.

    >>> smoother = LocalRewrite("smoother", lambda m: type(m) is nn.ReLU, lambda old: nn.GELU())
    >>> smoother.places(nn.Sequential(nn.ReLU(), nn.ReLU()))
    ['0', '1']
    >>> smoother.apply(nn.Sequential(nn.ReLU(), nn.ReLU()), at=["1"])
    Sequential(
      (0): ReLU()
      (1): GELU(approximate='none')
    )
    """

    fits: Callable[[Any], bool]
    build: Callable[[Any], nn.Module]
    not_inside: tuple[type[nn.Module], ...] = ()

    def places(self, model: nn.Module) -> list[str]:
        """Paths of the modules that can be replaced; of those inside each other the outermost."""
        found: list[str] = []
        closed: list[str] = []
        for path, module in model.named_modules():
            if any(path.startswith(f"{outer}.") for outer in closed):
                continue
            if isinstance(module, self.not_inside):
                closed.append(path)
            elif path and self.fits(module):
                found.append(path)
                closed.append(path)
        return found

    def apply(self, model: nn.Module, at: Collection[str] | None = None) -> nn.Module | None:
        """A copy of the model with the modules replaced, or None where there is none to replace.

        Args:
            model: the model, left as it was.
            at: paths of the modules to replace; by default all that fit.
        """
        paths = [path for path in self.places(model) if at is None or path in at]
        if not paths:
            return None
        new = copy.deepcopy(model)
        for path in paths:
            new.set_submodule(path, self.replacement(new.get_submodule(path)))
        return new

    def replacement(self, module: nn.Module) -> nn.Module:
        """The new module in the dtype and on the device of the old one, for inference; the old one may be used up."""
        return self.build(module.eval()).eval()
