"""A rewrite takes a fused model to an equivalent one that a device may run faster; methods bring their own.

`lf.optimize` collects the rewrites that no method owns and those of every method, tries them, and keeps what pays.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Rewrite:
    """One step towards the fastest form.

    Attributes:
        name: what reports and cards call the step.
        apply: model → an equivalent copy, or None where there is nothing to do.
    """

    name: str
    apply: Callable[[nn.Module], nn.Module | None]


def replaced(model: nn.Module, fits: Callable[[Any], bool], build: Callable[[Any], nn.Module]) -> nn.Module | None:
    """A copy of the model in which every module that fits became what `build` makes of it; None where none fits.

    Args:
        model: the model, left as it was.
        fits: says of a module whether it is to be replaced.
        build: makes the new module from the old one (of the copy, whose weights it may take over).

    >>> replaced(nn.Sequential(nn.ReLU()), lambda m: type(m) is nn.ReLU, lambda old: nn.GELU())
    Sequential(
      (0): GELU(approximate='none')
    )
    """
    paths = [path for path, module in model.named_modules() if path and fits(module)]
    if not paths:
        return None
    new = copy.deepcopy(model)
    for path in paths:
        new.set_submodule(path, build(new.get_submodule(path)).eval())
    return new
