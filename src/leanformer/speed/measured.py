"""Which steps are known to pay, by chip: what `lf.optimize(search=False)` takes without timing anything.

A step stands here only where runs on that chip showed a gain for the kinds of models it names (docs/performance.md). A
chip that is not listed gets plain compilation until something was timed on it.
"""

from collections.abc import Callable

from torch import nn

Condition = Callable[[nn.Module], bool]


def always(model: nn.Module) -> bool:
    """Every model that the step can be applied to."""
    return True


def without_depthwise(model: nn.Module) -> bool:
    """Models whose token mixers do not convolve: with those, what layout and stem gain was not seen.

    >>> without_depthwise(nn.Sequential(nn.Conv2d(3, 8, 3))), without_depthwise(nn.Conv2d(8, 8, 3, groups=8))
    (True, False)
    """
    return not any(isinstance(module, nn.Conv2d) and module.groups > 1 for module in model.modules())


HOPPER: dict[str, Condition] = {
    "fp8 products": always,
    "patches by product": always,
    "first convolution by product": without_depthwise,
    "channels last": without_depthwise,
    "activation in product": always,
    "pooling with its norm in one pass": always,
    "RePa by products": always,
    "mixer-free stages in one pass": always,
    "attention with class row": always,
    "tokens ranked by counting": always,
    "tokens reorganised in one pass": always,
    "tokens slimmed in one pass": always,
    "proportional attention in one kernel": always,
    "merged tokens beside their sizes": always,
    "CUDA graph": always,
}

MEASURED: dict[str, dict[str, Condition]] = {"NVIDIA H200": HOPPER}


def pays(chip: str, step: str, model: nn.Module) -> bool:
    """Whether a step was measured to make models like this one faster on this chip.

    Args:
        chip: the device's name.
        step: the step's name.
        model: the fused model.

    >>> pays("NVIDIA H200", "patches by product", nn.Identity()), pays("cpu", "patches by product", nn.Identity())
    (True, False)
    """
    condition = MEASURED.get(chip, {}).get(step)
    return condition is not None and condition(model)
