"""GFNet (Rao et al., NeurIPS 2021), RIFormer's teacher of logits.

The official classes are `GFNet` of one stage and `GFNetPyramid` of four.
"""

from typing import Any

from torch import nn

from ..backbones import create
from ..backbones.gfnet import CONFIGS
from .door import CONVERTERS, RELEASED, Converter, KeyMap, State, refuse_options, take

ISOTROPIC = "raoyongming/GFNet gfnet.GFNet"
PYRAMID = "raoyongming/GFNet gfnet.GFNetPyramid"

IN_BLOCK = [("norm1.{*}", "norm.{*}"), ("filter.{*}", "fn.filter.{*}"), ("norm2.{*}", "fn.norm.{*}")]
IN_BLOCK += [("mlp.{*}", "fn.mlp.{*}"), ("gamma", "scale.gamma")]
KEYS = {
    "isotropic": KeyMap([(f"blocks.{{i}}.{a}", f"stages.0.blocks.{{i}}.mix.{b}") for a, b in IN_BLOCK]),
    "pyramid": KeyMap(
        [(f"blocks.{{s}}.{{i}}.{a}", f"stages.{{s}}.blocks.{{i}}.mix.{b}") for a, b in IN_BLOCK]
        + [
            ("patch_embed.0.proj.{*}", "patch_embed.proj.{*}"),
            ("patch_embed.{s}.proj.{*}", "stages.{s}.downsample.{*}"),
        ]
    ),
}
SAME = ("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "drop_path_rate")


def _arguments(config: dict[str, Any]) -> dict[str, Any]:
    left = dict(config)
    arguments = take(left, *SAME)
    arguments |= {"drop_rate": left.pop("dropcls", 0.0), "proj_drop_rate": left.pop("drop_rate", 0.0)}
    if left.pop("uniform_drop", False) and arguments.get("drop_path_rate"):
        raise ValueError("the official option uniform_drop=True has no counterpart: our drop path grows with the depth")
    if not left.pop("no_layerscale", True):
        arguments["layer_scale"] = left.pop("init_values", 1e-3)
    left.pop("init_values", None)
    refuse_options(left, {}, "GFNet")
    return arguments


def _build(config: dict[str, Any], state: State) -> nn.Module:
    if not _is_pyramid(state):
        return create("gfnet", **_arguments({"embed_dim": 768, "depth": 12, **config}))
    defaults = {"patch_size": 4, "embed_dim": [64, 128, 256, 512], "depth": [2, 2, 10, 4], "no_layerscale": False}
    return create("gfnet", **_arguments({**defaults, **config}))


def _is_pyramid(state: State) -> bool:
    return "patch_embed.0.proj.weight" in state


def _ours(state: State, model: nn.Module) -> State:
    keys = KEYS["pyramid" if _is_pyramid(state) else "isotropic"]
    return {keys.ours(key): value for key, value in state.items()}


def _theirs(state: State, model: nn.Module) -> State:
    keys = KEYS["pyramid" if "stages.1.downsample.weight" in state else "isotropic"]
    return {keys.theirs(key): value for key, value in state.items()}


CONVERTERS.append(Converter("gfnet", "raoyongming/GFNet", _build, _ours, _theirs))


def _official_config(name: str) -> dict[str, Any]:
    config = dict(CONFIGS[name])
    scale = config.pop("layer_scale", None)
    return config if scale is None else {**config, "init_values": scale, "no_layerscale": False}


for _name in CONFIGS:
    RELEASED[_name] = (PYRAMID if "_h_" in _name else ISOTROPIC, _official_config(_name))
