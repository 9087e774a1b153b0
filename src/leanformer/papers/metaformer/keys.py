"""The MetaFormer family's official checkpoints: PoolFormer v1, its hybrid models, and the MetaFormer baselines.

v1 numbers everything between the stem and the head in one list, `network`: for each stage its position embedding (if
any), its blocks, and the downsampling after them (if any). The baselines name stages and downsamplings apart.
"""

import re
from collections.abc import Callable
from math import isqrt
from typing import Any

from torch import nn

from ...backbones import create
from ...backbones.metaformer import MetaFormer
from ...backbones.metaformer_config import FAMILIES, OFFICIAL, Config
from ...core import card_of
from ..door import CONVERTERS, RELEASED, Converter, KeyMap, State, take

POOLFORMER = "sail-sg/poolformer models.poolformer.PoolFormer"
HYBRID = "sail-sg/poolformer models.metaformer.MetaFormer"
BASELINES = "sail-sg/metaformer metaformer_baselines.MetaFormer"

NORMS = {"GroupNorm": "modified", "LayerNormChannel": "layer", "BatchNorm2d": "batch", "Identity": "none"}
ACTS = {"GELU": "gelu", "ReLU": "relu", "SiLU": "silu", "StarReLU": "star_relu", "SquaredReLU": "squared_relu"}
LETTERS = {"p": "pooling", "a": "attention", "f": "spatial_fc", "i": "identity"}
BLOCK_V1 = (
    ("norm1.{*}", "mix.norm.{*}"), ("token_mixer.{*}", "mix.fn.{*}"), ("layer_scale_1", "mix.scale.gamma"),
    ("norm2.{*}", "ffn.norm.{*}"), ("mlp.{*}", "ffn.fn.{*}"), ("layer_scale_2", "ffn.scale.gamma"),
)  # fmt: skip
BLOCK_V2 = (
    ("norm1.{*}", "mix.norm.{*}"), ("token_mixer.{*}", "mix.fn.{*}"), ("layer_scale1.scale", "mix.scale.gamma"),
    ("res_scale1.scale", "mix.skip.scale"), ("norm2.{*}", "ffn.norm.{*}"), ("mlp.{*}", "ffn.fn.{*}"),
    ("layer_scale2.scale", "ffn.scale.gamma"), ("res_scale2.scale", "ffn.skip.scale"),
)  # fmt: skip


def v1_arguments(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Our arguments of `metaformer` for the constructor's arguments of an official v1 class."""
    config = {key: value for key, value in config.items() if not (key in ("init_cfg", "pretrained") and value is None)}
    take = config.pop
    if missing := [name for name in ("layers", "embed_dims") if name not in config]:
        raise ValueError(f"the config of a v1 model must have {' and '.join(missing)}")
    arguments = {**settings, "depths": take("layers"), "dims": take("embed_dims")}
    scale = take("layer_scale_init_value", 1e-5)
    arguments["layer_scale_init_values"] = scale if take("use_layer_scale", True) else None
    if norm := take("norm", None) or take("norm_layer", None):
        arguments["norm"] = _known(NORMS, norm, "norm")
    if act := take("act", None) or take("act_layer", None):
        arguments["act"] = _known(ACTS, act, "activation")
    for ours, theirs, default in (("stem", "in", (7, 4, 2)), ("down", "down", (3, 2, 1))):
        names = (f"{theirs}_patch_size", f"{theirs}_stride", f"{theirs}_pad")
        arguments[ours] = tuple(take(name, value) for name, value in zip(names, default, strict=True))
    same = ("mlp_ratios", "downsamples", "pool_size", "num_classes", "drop_rate", "drop_path_rate", "fork_feat")
    arguments |= {name: take(name) for name in (*same, "img_size", "crop_pct") if config.get(name) is not None}
    _refuse(config)
    return arguments


def _build_poolformer(config: dict[str, Any], state: State) -> nn.Module:
    family = config.pop("family", "poolformer")
    if family != "poolformer":
        raise ValueError(f"models.poolformer.PoolFormer is of the family poolformer, not {family}")
    return create("metaformer", **v1_arguments(config, {}))


def _build_hybrid(config: dict[str, Any], state: State) -> nn.Module:
    """The hybrid class takes its mixers as Python classes; here the family's letters or a list of names say them."""
    family, mixers = config.pop("family", None), config.pop("token_mixers", None)
    stages = len(config["layers"])
    if mixers is not None:
        settings: dict[str, Any] = {"norm": "layer"}
        settings["token_mixers"] = [_known(LETTERS, str(name)[0].lower(), "token mixer") for name in mixers]
    else:
        settings = _family_settings(family, stages)
    config.pop("add_pos_embs", None)
    settings = v1_arguments(config, settings)
    settings["pos_embed"] = _pos_embeds(state, Config(**{**_plain(settings), "pos_embed": False}))
    return create("metaformer", **_with_img_size(settings, state, network_places(Config(**_plain(settings)))))


def _family_settings(family: str | None, stages: int) -> dict[str, Any]:
    found = re.match(r"metaformer_(id|[paf]+)", family or "")
    if not found or (found[1] != "id" and len(found[1]) != stages):
        raise ValueError(
            f"the family '{family}' does not name a mixer for each of {stages} stages; "
            "metaformer_id, metaformer_ppaa and the like do (p pooling, a attention, f spatial FC)"
        )
    if found[0] in FAMILIES:
        return dict(FAMILIES[found[0]])
    return {"token_mixers": [LETTERS[letter] for letter in found[1]], "norm": "layer"}


def _pos_embeds(state: State, config: Config) -> list[bool]:
    """Which stages have a position embedding: each shifts the numbers of all that follows."""
    found, index = [], 0
    for s in range(len(config.depths)):
        index += 1 if s and config.has_downsample(s) else 0
        found.append(f"network.{index}.pos_embed" in state)
        index += 2 if found[-1] else 1
    return found


def _build_baseline(config: dict[str, Any], state: State) -> nn.Module:
    family = config.pop("family", None)
    if family not in FAMILIES or FAMILIES[family].get("layout") != "NHWC":
        known = ", ".join(name for name, settings in FAMILIES.items() if settings.get("layout") == "NHWC")
        raise ValueError(f"config must name the family of metaformer_baselines.MetaFormer: {known}; it is {family}")
    config.pop("num_tokens", None)  # the state dict's matrices say it
    same = (
        "depths", "dims", "in_chans", "num_classes", "drop_path_rate", "head_dropout", "layer_scale_init_values",
        "res_scale_init_values", "img_size", "crop_pct",
    )  # fmt: skip
    arguments = {**FAMILIES[family], **take(config, *same)}
    _refuse(config)
    places = {s: f"stages.{s}" for s in range(len(arguments["depths"]))}
    return create("metaformer", **_with_img_size(arguments, state, places))


def network_places(config: Config) -> dict[int, str]:
    """Stage → the official prefix of its blocks in v1's `network`."""
    places, index = {}, 0
    for s in range(len(config.depths)):
        index += int(s > 0 and config.has_downsample(s)) + int(config.pos_embed[s])
        places[s] = f"network.{index}"
        index += 1
    return places


def _with_img_size(arguments: dict[str, Any], state: State, places: dict[int, str]) -> dict[str, Any]:
    """The arguments with the input size that the state dict's position embeddings and token matrices ask for."""
    planes: dict[int, tuple[int, int]] = {}
    for s, place in places.items():
        index = int(place.rpartition(".")[2])
        position = state.get(f"network.{index - 1}.pos_embed")
        matrix = state.get(f"{place}.0.token_mixer.random_matrix", state.get(f"{place}.0.token_mixer.fc.weight"))
        if position is not None:
            planes[s] = (position.shape[2], position.shape[3])
        elif matrix is not None:
            planes[s] = _square(matrix.shape[0])
    if not planes or "img_size" in arguments:
        return arguments
    size = [_axis(arguments, {s: plane[axis] for s, plane in planes.items()}) for axis in (0, 1)]
    return {**arguments, "img_size": size}


def _square(tokens: int) -> tuple[int, int]:
    side = isqrt(tokens)
    if side * side != tokens:
        raise ValueError(f"a mixer over {tokens} tokens does not say the plane's height and width; give img_size")
    return side, side


def _axis(arguments: dict[str, Any], sides: dict[int, int]) -> int:
    """The number of pixels that gives maps of these sides: the plain multiple of the stride where that fits."""
    config = Config(**_plain(arguments))
    deepest = max(sides)
    plain = sides[deepest] * config.reduction(deepest)
    for size in (plain, *range(1, 2 * plain)):
        maps = Config(**{**_plain(arguments), "img_size": size})
        if all(maps.plane(s)[0] == side for s, side in sides.items()):
            return size
    raise ValueError(f"no image size gives maps of side {sides} in these stages; the state dict is for another model")


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != "crop_pct"}


def _known(table: dict[str, str], name: Any, what: str) -> str:
    name = getattr(name, "__name__", name)
    if name not in table and name not in table.values():
        raise ValueError(f"unknown {what} '{name}'; known: {', '.join(table)}")
    return table.get(str(name), str(name))


def _refuse(config: dict[str, Any]) -> None:
    if config:
        raise ValueError(f"the config has arguments that are not understood: {', '.join(sorted(config))}")


def _v1_keys(model: nn.Module) -> KeyMap:
    assert isinstance(model, MetaFormer)
    pairs = [("patch_embed.proj.{*}", "stem.conv.{*}")]
    for s, place in network_places(model.config).items():
        index = int(place.rpartition(".")[2])
        if model.config.pos_embed[s]:
            pairs.append((f"network.{index - 1}.pos_embed", f"stages.{s}.pos_embed"))
        if s and model.config.has_downsample(s):
            before = index - 1 - int(model.config.pos_embed[s])
            pairs.append((f"network.{before}.proj.{{*}}", f"stages.{s}.downsample.conv.{{*}}"))
        pairs += [(f"{place}.{{i}}.{theirs}", f"stages.{s}.blocks.{{i}}.{ours}") for theirs, ours in BLOCK_V1]
        if model.fork_feat:
            pairs.append((f"norm{2 * s}.{{*}}", f"out_norms.{s}.{{*}}"))
    return KeyMap(pairs)


def _v2_keys(model: nn.Module) -> KeyMap:
    return KeyMap(
        [
            ("downsample_layers.0.{*}", "stem.{*}"),
            ("downsample_layers.{s}.{*}", "stages.{s}.downsample.{*}"),
            *((f"stages.{{s}}.{{i}}.{theirs}", f"stages.{{s}}.blocks.{{i}}.{ours}") for theirs, ours in BLOCK_V2),
        ]
    )


def _converter(official: str, build: Callable[..., nn.Module], keys: Callable[[nn.Module], KeyMap]) -> Converter:
    def ours(state: State, model: nn.Module) -> State:
        names = keys(model)
        return {names.ours(key): value for key, value in state.items()}

    def theirs(state: State, model: nn.Module) -> State:
        if card_of(model).claims:
            methods = ", ".join(method.name for method in card_of(model).methods)
            raise ValueError(f"a MetaFormer with {methods} has no form in {official}")
        names = keys(model)
        return {names.theirs(key): value for key, value in state.items()}

    return Converter("metaformer", official.partition(" ")[2], build, ours, theirs)


def _released(name: str) -> tuple[str, dict[str, Any]]:
    """Official class and config of a released model."""
    settings = OFFICIAL[name]
    family = next(f for f in sorted(FAMILIES, key=len, reverse=True) if name.startswith(f"{f}_"))
    config = {"family": family, "crop_pct": settings.get("crop_pct", 0.9)}
    if FAMILIES[family].get("layout") == "NHWC":
        same = ("depths", "dims", "num_classes", "img_size")
        return BASELINES, {**config, **{key: settings[key] for key in same if key in settings}}
    v1 = {"layers": settings["depths"], "embed_dims": settings["dims"], "mlp_ratios": (4, 4, 4, 4)}
    v1 |= {"downsamples": (True,) * 4, "layer_scale_init_value": settings.get("layer_scale_init_values", 1e-5)}
    return (POOLFORMER if family == "poolformer" else HYBRID), {**config, **v1}


CONVERTERS += [
    _converter(POOLFORMER, _build_poolformer, _v1_keys),
    _converter(HYBRID, _build_hybrid, _v1_keys),
    _converter(BASELINES, _build_baseline, _v2_keys),
]
RELEASED.update({name: _released(name) for name in OFFICIAL})
