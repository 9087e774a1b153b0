"""RIFormer's official class: mmpretrain's backbone with global pooling and a linear head, in both of its forms.

In the deploy form `norm_reparam` stands for norm and affine, and the LayerScale behind it is still there. Ours has
folded that into the norm as well; on the way back it is all ones.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ...backbones.build import create
from ...core import apply, card_of, fold, method_from
from ..door import CONVERTERS, RELEASED, Converter, KeyMap, State
from .models import SIZES

OFFICIAL = "mmpretrain RIFormer + GAP + LinearClsHead"
REPARAM = "norm_reparam.weight"
RENAMED = {"in_channels": "in_chans", "num_classes": "num_classes", "img_size": "img_size", "drop_rate": "drop_rate"}
CONVS = {"stem": ("in_patch_size", "in_stride", "in_pad"), "down": ("down_patch_size", "down_stride", "down_pad")}
CONV_DEFAULTS = {"stem": (7, 4, 2), "down": (3, 2, 1)}
NEUTRAL = {"norm_cfg": {"type": "GN", "num_groups": 1}, "act_cfg": {"type": "GELU"}, "frozen_stages": -1}
FORM = ("deploy", "init_cfg")
"""Options that say nothing about the weights: which form they are in shows in their keys."""


def _build(config: dict[str, Any], state: State) -> nn.Module:
    name, arguments = _arguments(config)
    if "head.fc.weight" not in state:  # the backbone alone
        arguments["num_classes"] = 0
    model = apply(create(name, **arguments), method_from("riformer", {}))
    return fold(model) if _deployed(state) else model


def _arguments(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Our backbone and its arguments for the official constructor's."""
    left = {"arch": "s12", "num_classes": 1000, **config}
    arch = left.pop("arch")
    arguments: dict[str, Any] = {ours: left.pop(theirs) for theirs, ours in RENAMED.items() if theirs in left}
    arguments["drop_path_rate"] = left.pop("drop_path_rate", 0.0)
    for ours, parts in CONVS.items():
        given = tuple(left.pop(part, default) for part, default in zip(parts, CONV_DEFAULTS[ours]))
        arguments |= {ours: given} if given != CONV_DEFAULTS[ours] else {}
    name, stages = f"poolformer_{arch}", 4
    if isinstance(arch, dict):
        name, stages = "metaformer", len(arch["layers"])
        arguments |= {"depths": tuple(arch["layers"]), "dims": tuple(arch["embed_dims"])}
        arguments |= {"mlp_ratios": tuple(arch["mlp_ratios"])}
        arguments |= {"layer_scale_init_values": arch["layer_scale_init_value"]}
    elif arch not in SIZES:
        raise ValueError(f"unknown RIFormer '{arch}'; known: {', '.join(SIZES)}, or a dict of layers and widths")
    arguments |= _outputs(left.pop("out_indices", -1), stages)
    for key, value in left.items():
        if key not in FORM and value != NEUTRAL.get(key):
            raise ValueError(f"the official option {key}={value!r} has no counterpart in our RIFormer")
    return name, arguments


def _outputs(indices: Any, stages: int) -> dict[str, Any]:
    """The stages whose maps are normalised and given out. Officially the downsamplings count as well: 0, 1, …, 6."""
    given = [indices] if isinstance(indices, int) else list(indices)
    entries = sorted(index % (2 * stages - 1) for index in given)
    if any(entry % 2 for entry in entries) or entries[-1] != 2 * stages - 2:
        raise ValueError(f"out_indices={indices} gives out a downsampling, or not the last stage, which the head reads")
    return {"out_norms": tuple(entry // 2 for entry in entries[:-1])} if len(entries) > 1 else {}


def _keys(stages: int) -> KeyMap:
    pairs = [("backbone.patch_embed.proj.{*}", "stem.conv.{*}"), ("head.fc.{*}", "head.{*}")]
    for s in range(stages):
        theirs, ours = f"backbone.network.{2 * s}.{{i}}", f"stages.{s}.blocks.{{i}}"
        pairs += [
            (f"{theirs}.token_mixer.affine.{{*}}", f"{ours}.mix.fn.{{*}}"),
            (f"{theirs}.norm1.{{*}}", f"{ours}.mix.norm.{{*}}"),
            (f"{theirs}.layer_scale_1", f"{ours}.mix.scale.gamma"),
            (f"{theirs}.norm2.{{*}}", f"{ours}.ffn.norm.{{*}}"),
            (f"{theirs}.layer_scale_2", f"{ours}.ffn.scale.gamma"),
            (f"{theirs}.mlp.{{*}}", f"{ours}.ffn.fn.{{*}}"),
            (f"backbone.network.{2 * s - 1}.proj.{{*}}", f"stages.{s}.downsample.conv.{{*}}"),
            (f"backbone.norm{2 * s}.{{*}}", f"out_norms.{s}.{{*}}" if s < stages - 1 else "norm.{*}"),
        ]
    return KeyMap(pairs)


def _deployed(state: State) -> bool:
    return any(key.endswith(REPARAM) for key in state)


def _ours(state: State, model: Any) -> State:
    """Affine weights lose their convolution's shape; in deploy form LayerScale goes into the norm."""
    if not any(key.startswith("backbone.") for key in state):  # saved from the backbone alone
        state = {key if key.startswith("head.") else f"backbone.{key}": value for key, value in state.items()}
    if _deployed(state):
        for key in [key for key in state if key.endswith("layer_scale_1")]:
            scale, block = state.pop(key), key.removesuffix("layer_scale_1")
            for part in ("weight", "bias"):
                state[f"{block}norm1.{part}"] = state.pop(f"{block}norm_reparam.{part}") * scale
    renamed = {_keys(len(model.stages)).ours(key): value for key, value in state.items()}
    return {key: value.flatten() if ".mix.fn." in key else value for key, value in renamed.items()}


def _theirs(state: State, model: Any) -> State:
    keys = _keys(len(getattr(model, "stages", ())))
    if not all(keys.theirs(key).startswith(("backbone.", "head.fc.")) for key in state) or not _all_free(state):
        raise ValueError(
            "the official RIFormer is a PoolFormer without any token mixer; "
            "this model has other modules, or keeps some of its token mixers"
        )
    official = {keys.theirs(key): _as_conv(key, value) for key, value in state.items()}
    if not card_of(model).fused:
        return official
    renamed = {key.replace(".norm1.", ".norm_reparam."): value for key, value in official.items()}
    scales = {
        key.replace(REPARAM, "layer_scale_1"): torch.ones_like(value)
        for key, value in renamed.items()
        if key.endswith(REPARAM)
    }
    return renamed | scales


def _all_free(state: State) -> bool:
    """Whether every block is an affine's, or every block has lost it."""
    norms, affines = (sum(key.endswith(end) for key in state) for end in (".mix.norm.weight", ".mix.fn.weight"))
    return affines in (0, norms)


def _as_conv(key: str, value: Tensor) -> Tensor:
    return value[:, None, None, None] if key.endswith(".mix.fn.weight") else value


CONVERTERS.append(Converter("riformer", "mmpretrain RIFormer", _build, _ours, _theirs, method="riformer"))

for _size in SIZES:
    for _name, _pixels in ((f"riformer_{_size}", 224), (f"riformer_{_size}_384", 384)):
        RELEASED[_name] = (OFFICIAL, {"arch": _size, "img_size": _pixels})
