"""SiT's official class as a student: an LV-ViT+ with token slimming, and the reverse modules in the same file.

The reverse modules are no part of our model. A training objective has them, under the official keys:

    objective.load_state_dict(recalibration_state(official))           official → ours
    lf.to_official(model) | objective.state_dict()                     ours → official, for further training there
"""

from typing import Any

from torch import nn

from ...backbones.lvvit import LVViT
from ...core import apply, card_of, method_from
from ..door import CONVERTERS, RELEASED, Converter, KeyMap, State
from ..lvvit.keys import KEYS, build_sit_backbone

OFFICIAL = "Sense-X/SiT models.lvvit.LVViT(distillation_type='frd')"
STAGES = {
    "tiny": [1, 1, 1, 11],
    "xsmall": [1, 1, 1, 13],
    "small": [9, 3, 2, 2],
    "medium": [10, 4, 3, 3],
    "large": [10, 4, 3, 7],
}
SLIMMING = KeyMap(
    [
        ("tsm.{i}.weight.0.{*}", "tsm.{i}.norm.{*}"),
        ("tsm.{i}.weight.1.{*}", "tsm.{i}.fc1.{*}"),
        ("tsm.{i}.weight.3.{*}", "tsm.{i}.fc2.{*}"),
    ]
)


def recalibration_state(state: State) -> State:
    """The reverse modules' part of an official checkpoint, as the objective of SiT loads it.

    >>> import torch
    >>> recalibration_state({"head.bias": torch.zeros(2), "rtsm.1.norm1.bias": torch.zeros(4)}).keys()
    dict_keys(['rtsm.1.norm1.bias'])
    """
    return {key: value for key, value in state.items() if key.startswith("rtsm.")}


def _build(config: dict[str, Any], state: State) -> nn.Module:
    model = build_sit_backbone(config, state)
    stages = config.get("stage_blocks", STAGES["xsmall"])
    options = {"keep_ratio": config.get("keeping_ratio", 0.5), "stages": list(stages), "start": "random"}
    return apply(model, method_from("sit", options))


def _slimmed(model: nn.Module) -> list[int]:
    """The blocks that a slimming comes before."""
    return [i for i, block in enumerate(model.blocks) if not isinstance(block.pre, nn.Identity)]  # type: ignore


def _ours(state: State, model: nn.Module) -> State:
    places, ours = _slimmed(model), {}
    for key, value in state.items():
        if key.startswith("rtsm."):
            continue
        if key.startswith("tsm."):
            _, index, rest = SLIMMING.ours(key).split(".", 2)
            if int(index) >= len(places):
                raise ValueError(f"the state dict has {key}, but this model slims {len(places)} times")
            ours[f"blocks.{places[int(index)]}.pre.{rest}"] = value.reshape(()) if rest == "scale" else value
        else:
            ours[KEYS.ours(key)] = value
    return ours


def _theirs(state: State, model: nn.Module) -> State:
    if not _is_official(model):
        raise ValueError(
            "the official SiT is an LV-ViT that is not fused, slimmed by operator='tsm' over axis='inputs' from "
            f"start='random'; this is {card_of(model).methods} on {type(model).__name__}"
        )
    inside = {f"blocks.{place}.pre.": f"tsm.{k}." for k, place in enumerate(_slimmed(model))}
    backbone, slimming = {}, {}
    for key, value in state.items():
        prefix = key[: key.find(".pre.") + len(".pre.")]
        if prefix in inside:
            rest = key.removeprefix(prefix)
            slimming[SLIMMING.theirs(inside[prefix] + rest)] = value.reshape(1, 1, 1) if rest == "scale" else value
        else:
            backbone[KEYS.theirs(key)] = value
    return backbone | slimming


def _is_official(model: nn.Module) -> bool:
    card = card_of(model)
    if not isinstance(model, LVViT) or card.fused or [m.name for m in card.methods] != ["sit"]:
        return False
    options = card.methods[0].fields()
    return (options["operator"], options["axis"], options["start"]) == ("tsm", "inputs", "random")


CONVERTERS.append(Converter("sit", "LVViT(distillation_type='frd')", _build, _ours, _theirs, method="sit"))

for _size, _stages in STAGES.items():
    RELEASED[f"sit_lvvit_{_size}"] = (OFFICIAL, {**RELEASED[f"lvvit_plus_{_size}"][1], "stage_blocks": _stages})
