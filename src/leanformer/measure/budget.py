"""keep_rate_for: how many tokens a budget of MACs pays for.

Larger images have more patches; with fewer of them kept, a model costs what it cost before. MACs
grow with the keep rate, so the highest rate within the budget is found by bisection.
"""

import copy

from torch import nn

from ..core import input_of, with_options
from .counting import count

STEPS = 100
"""Keep rates are searched in hundredths."""


def keep_rate_for(model: nn.Module, macs: float, img_size: int | tuple[int, int] | None = None) -> float:
    """The highest keep rate, in hundredths, at which the model costs at most `macs` for an image.

    Args:
        model: a model with a run-time option `keep_rate`, as methods that drop or merge tokens give it.
        macs: the budget.
        img_size: of the image; by default the model's own.
    """
    twin = copy.deepcopy(model).to("meta")
    if img_size is not None:
        _set_size(twin, img_size)
    size = input_of(twin)["input_size"]
    costs = {}

    def fits(step: int) -> bool:
        costs[step] = count(with_options(twin, keep_rate=step / STEPS), size).macs
        return costs[step] <= macs

    high = STEPS
    if fits(high):
        return 1.0
    low = next(step for step in range(1, STEPS) if _taken(twin, step / STEPS))
    if not fits(low):
        raise ValueError(
            f"even a keep rate of {low / STEPS} costs {costs[low] / 1e9:.3f} G MACs, over {macs / 1e9:g} G"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low / STEPS


def _taken(model: nn.Module, rate: float) -> bool:
    """Whether the model's methods take this keep rate; some have a least one."""
    try:
        with_options(model, keep_rate=rate)
    except ValueError:
        return False
    return True


def _set_size(model: nn.Module, img_size: int | tuple[int, int]) -> None:
    size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    if size == tuple(input_of(model)["input_size"][1:]):
        return
    if not hasattr(model, "set_input_size"):
        raise ValueError(f"{type(model).__name__} cannot change its size; give the model made for {size[0]}x{size[1]}")
    model.set_input_size(img_size=size)  # type: ignore[operator]
