"""RePaFormer's official checkpoints, in trained and in reparameterised form: ViT, Swin, PoolFormer and MLP-Mixer.

The official FFN holds its norm and its shortcut, as our idle FFN does, so most keys differ in their prefix alone.
Reparameterised, fc1 is the linear path (C x C), fc2 goes into the activation and fc3 out of it, as in our fused FFN.
Where few channels idle, official fusing still adds the path, which then costs more than it saves; we keep the pair.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timm.models.swin_transformer import SwinTransformer
from torch import nn

from ...backbones import create
from ...backbones.metaformer import MetaFormer
from ...backbones.metaformer_config import SIZES
from ...core import apply, blocks_of, card_of, fold
from ...methods import RePa
from ...methods.repa.idle import (
    Affine,
    FusedFFN,
    FusedPair,
    Rounding,
    active_channels,
    linear_schedule,
    reparameterise,
)
from ...methods.repa.idle_ffn import IdleFFN
from ..door import CONVERTERS, RELEASED, Converter, KeyMap, State, refuse_options, take
from ..metaformer.keys import network_places, v1_arguments
from .models import MIXERS, POOL_SIZE, SWINS, VITS, TokenNormMixer

VIT = "Ackesnal/RePaViT repavit.Transformer"
SWIN = "Ackesnal/RePaViT repaswin.SwinTransformer"
POOLFORMER = "Ackesnal/RePaViT repapoolformer.PoolFormer"
MIXER = "Ackesnal/RePaViT repamlpmixer.RePaMlpMixer"

COMMON = ("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "drop_path_rate")
NEUTRAL = {
    "fc_norm": False, "global_pool": "token", "class_token": True, "no_embed_class": False, "weight_init": "",
    "po_shortcut": False, "qk_scale": None, "ape": False, "patch_norm": True, "use_checkpoint": False,
    "fused_window_process": False, "drop_rate": 0.0, "mlp_ratio": (0.5, 4.0), "pretrained": False, "qkv_bias": True,
}  # fmt: skip
"""Options that have no counterpart, at the value that changes nothing."""
MIXER_RATIO = 0.75
"""The one idle ratio of the official Mixer, whose FFNs are four times as wide as it is."""


def _method(config: dict[str, Any], rounding: Rounding) -> RePa | None:
    """Our RePa for the official options, which leave `config`; None where no channel idles."""
    norm = config.pop("feature_norm", "LayerNorm")
    idles, ratio = config.pop("channel_idle", False), config.pop("idle_ratio", 0.75)
    schedule = "linear" if config.pop("heuristic", None) == "linear" else "static"
    if norm not in ("BatchNorm", "LayerNorm"):
        raise ValueError(f"feature_norm '{norm}' is neither BatchNorm nor LayerNorm")
    if not idles:
        return None
    kind = "batch" if norm == "BatchNorm" else "layer"
    return RePa(idle_ratio=ratio, schedule=schedule, norm=kind, rounding=rounding)


def _finish(model: nn.Module, method: RePa | None, left: dict[str, Any], state: State) -> nn.Module:
    """Put RePa on, and fold where the state dict is of the reparameterised form."""
    refuse_options(left, NEUTRAL, "RePaFormers")
    if method is not None:
        model = apply(model, method)
    trained = any(".mlp" in key and (".norm1." in key or ".norm." in key) and "tokens" not in key for key in state)
    return model if trained or method is None else fold(model)


def _build_vit(config: dict[str, Any], state: State) -> nn.Module:
    method = _method(config, "ceil")
    arguments = take(config, *COMMON, "depth", "num_heads", "mlp_ratio", "pre_norm", "attn_drop_rate")
    arguments = {"mlp_ratio": 4, "pre_norm": False, **arguments}
    scale, start = config.pop("layer_scale", False), config.pop("init_values", None)
    if scale:
        arguments["init_values"] = start or 1e-5
    return _finish(create("repavit", **arguments), method, config, state)


def _build_swin(config: dict[str, Any], state: State) -> nn.Module:
    method = _method(config, "ceil")
    arguments = take(config, *COMMON, "depths", "num_heads", "window_size", "mlp_ratio", "attn_drop_rate")
    return _finish(create("swin", **arguments), method, config, state)


def _build_poolformer(config: dict[str, Any], state: State) -> nn.Module:
    method = _method(config, "floor")
    return _finish(create("metaformer", **v1_arguments(config, {})), method, {}, state)


def _build_mixer(config: dict[str, Any], state: State) -> nn.Module:
    """The official Mixer ignores its idle ratio: as many channels stay active as the model is wide."""
    method = _method(config | {"idle_ratio": MIXER_RATIO}, "nearest")
    take(config, "feature_norm", "channel_idle", "idle_ratio", "heuristic")
    arguments = take(config, *COMMON, "num_blocks")
    return _finish(create("repamixer", **arguments), method, config, state)


def _is_vit(model: nn.Module, method: RePa) -> bool:
    return card_of(model).backbone.startswith("repavit")  # norms of other ViTs have another eps


def _is_swin(model: nn.Module, method: RePa) -> bool:
    return type(model) is SwinTransformer and method.schedule == "static"


def _is_poolformer(model: nn.Module, method: RePa) -> bool:
    if not isinstance(model, MetaFormer) or method.schedule != "static":
        return False
    return model.config.layout == "NCHW" and set(model.config.token_mixers) == {"pooling"}


def _is_mixer(model: nn.Module, method: RePa) -> bool:
    return type(model) is TokenNormMixer and method.idle_ratio == MIXER_RATIO and method.schedule == "static"


def _serves(model: nn.Module, family: Callable[[nn.Module, RePa], bool], rounding: Rounding) -> bool:
    """Whether a model is of that family and has RePa alone, on all blocks alike: official classes have one ratio."""
    methods = card_of(model).methods
    if len(methods) != 1 or not isinstance(methods[0], RePa):
        return False
    method = methods[0]
    everywhere = method.blocks is None and method.stages is None and not isinstance(method.idle_ratio, tuple)
    if not everywhere or method.ramp_epochs or not family(model, method):
        return False
    return all(found == wanted for found, wanted in _active(model, method, rounding))


def _active(model: nn.Module, method: RePa, rounding: Rounding) -> Iterator[tuple[int, int]]:
    """Active channels of each FFN that is not fused: as it has them, and as its official class would count them."""
    blocks = blocks_of(model)
    ratio: Any = method.idle_ratio
    ratios = linear_schedule(ratio, len(blocks)) if method.schedule == "linear" else [ratio] * len(blocks)
    for block, share in zip(blocks.values(), ratios, strict=True):
        if isinstance(block.ffn, IdleFFN):
            hidden: Any = block.ffn.fc1.weight
            yield block.ffn.active, active_channels(len(hidden), share, rounding)


def _vit_keys(model: nn.Module) -> KeyMap:
    pairs = [("attn.norm.{*}", "mix.norm.{*}"), ("attn.ls", "mix.scale.gamma"), ("attn.{*}", "mix.fn.{*}")]
    return KeyMap(_block_pairs("blocks.{i}", "blocks.{i}", pairs))


def _swin_keys(model: Any) -> KeyMap:
    pairs = [("norm1.{*}", "mix.norm.{*}"), ("attn.{*}", "mix.fn.attn.{*}")]
    rest = [("head.{*}", "head.fc.{*}")]
    for layer in range(len(model.layers) - 1):  # theirs ends a stage with the downsampling that begins our next
        rest.append((f"layers.{layer}.downsample.{{*}}", f"layers.{layer + 1}.downsample.{{*}}"))
    return KeyMap([*_block_pairs("layers.{s}.blocks.{i}", "layers.{s}.blocks.{i}", pairs), *rest])


def _mixer_keys(model: nn.Module) -> KeyMap:
    pairs = [("mlp_tokens.norm.{*}", "mix.norm.fn.{*}"), ("mlp_tokens.{*}", "mix.fn.fn.{*}")]
    return KeyMap(_block_pairs("blocks.{i}", "blocks.{i}", pairs, mlp="mlp_channels"))


def _poolformer_keys(model: Any) -> KeyMap:
    rest = [("patch_embed.proj.{*}", "stem.conv.{*}")]
    pairs = [("norm1.{*}", "mix.norm.{*}"), ("layer_scale_1", "mix.scale.gamma")]
    for stage, place in network_places(model.config).items():
        if stage and model.config.has_downsample(stage):
            index = int(place.rpartition(".")[2]) - 1
            rest.append((f"network.{index}.proj.{{*}}", f"stages.{stage}.downsample.conv.{{*}}"))
        rest += _block_pairs(f"{place}.{{i}}", f"stages.{stage}.blocks.{{i}}", pairs)
    return KeyMap(rest)


def _block_pairs(theirs: str, ours: str, pairs: list[tuple[str, str]], mlp: str = "mlp") -> list[tuple[str, str]]:
    ffn = [(f"{mlp}.ls", "ffn.scale.gamma"), (f"{mlp}.{{*}}", "ffn.{*}")]
    return [(f"{theirs}.{their}", f"{ours}.{our}") for their, our in (*pairs, *ffn)]


def _ours(state: State, model: nn.Module, keys: Callable[[Any], KeyMap]) -> State:
    names = keys(model)
    state = {names.ours(key): v for key, v in state.items() if v.numel() and not key.endswith(DERIVED)}
    for path, block in blocks_of(model).items():
        ffn = f"{path}.ffn"
        if isinstance(block.ffn, FusedPair):
            _pair_from_three(state, ffn, block.ffn)
        elif hasattr(block.ffn, "fn"):  # no idle channels: the branch holds its MLP in `fn`
            for name in ("fc1", "fc2"):
                _move(state, f"{ffn}.{name}", f"{ffn}.fn.{name}")
    return state


def _theirs(state: State, model: nn.Module, keys: Callable[[Any], KeyMap]) -> State:
    names = keys(model)
    state = dict(state)
    for path, block in blocks_of(model).items():
        ffn = f"{path}.ffn"
        if isinstance(block.ffn, FusedPair) and isinstance(block.ffn.norm, nn.Identity):
            _three_from_pair(state, ffn, block.ffn)
        elif hasattr(block.ffn, "fn"):
            for name in ("fc1", "fc2"):
                _move(state, f"{ffn}.fn.{name}", f"{ffn}.{name}")
        elif isinstance(block.ffn, FusedFFN | FusedPair) and isinstance(block.ffn.norm, nn.Module):
            raise ValueError(f"{ffn}: a fused FFN that keeps its norm has no official form; convert it before lf.fuse")
        elif isinstance(block.ffn, FusedFFN) and block.ffn.fc2 is None and keys is _swin_keys:
            _empty_linears(state, ffn)
    found = {names.theirs(key): value for key, value in state.items()}
    return found | _derived(model)


def _empty_linears(state: State, ffn: str) -> None:
    """Official Swin keeps fc2 and fc3 without any active channel, as tensors without elements."""
    path = state[f"{ffn}.fc1.weight"]
    state[f"{ffn}.fc2.weight"], state[f"{ffn}.fc2.bias"] = path[:0], path[:0, 0]
    state[f"{ffn}.fc3.weight"] = path[:, :0]


def _move(state: State, source: str, target: str) -> None:
    for part in ("weight", "bias"):
        state[f"{target}.{part}"] = state.pop(f"{source}.{part}")


def _pair_from_three(state: State, ffn: str, pair: FusedPair) -> None:
    """The pair of linears of a block with few idle channels, whose path is the identity and a matrix of that rank."""
    path, bias = state.pop(f"{ffn}.fc1.weight"), state.pop(f"{ffn}.fc1.bias")
    into, into_bias = state.pop(f"{ffn}.fc2.weight"), state.pop(f"{ffn}.fc2.bias")
    out = state.pop(f"{ffn}.fc3.weight")
    idle = len(pair.fc1.weight) - pair.active  # type: ignore[arg-type]
    beside = path.flatten(1).double() - torch.eye(len(path), dtype=torch.float64, device=path.device)
    left, strength, right = torch.linalg.svd(beside)
    if (strength[idle:] > 1e-5 * max(1.0, strength[0])).any():
        raise ValueError(f"{ffn}: the path beside its {idle} idle channels has a higher rank; this is no RePaFormer")
    half = strength[:idle].sqrt()
    rows, columns = half[:, None] * right[:idle], left[:, :idle] * half
    shape = path.shape[2:]
    state[f"{ffn}.fc1.weight"] = torch.cat([into, rows.to(path).reshape(idle, len(path), *shape)])
    state[f"{ffn}.fc1.bias"] = torch.cat([into_bias, into_bias.new_zeros(idle)])
    state[f"{ffn}.fc2.weight"] = torch.cat([out, columns.to(path).reshape(len(path), idle, *shape)], dim=1)
    state[f"{ffn}.fc2.bias"] = bias


def _three_from_pair(state: State, ffn: str, pair: FusedPair) -> None:
    """The official three linears of a pair; the shortcut goes into the path."""
    first, second = (Affine(state.pop(f"{ffn}.{fc}.weight"), state.pop(f"{ffn}.{fc}.bias")) for fc in ("fc1", "fc2"))
    shape = first.weight.shape[2:]
    first, second = (Affine(layer.weight.flatten(1), layer.bias) for layer in (first, second))
    three = reparameterise(first, second, pair.active, shortcut=torch.ones_like(second.bias))
    for name, weight in (("fc1", three.path.weight), ("fc2", three.into.weight), ("fc3", three.out)):
        state[f"{ffn}.{name}.weight"] = weight.reshape(*weight.shape, *shape)
    state[f"{ffn}.fc1.bias"], state[f"{ffn}.fc2.bias"] = three.path.bias, three.into.bias


DERIVED = ("attn_mask", "relative_position_index")
"""Buffers that follow from the sizes: official Swin checkpoints hold them, our models make them."""


def _derived(model: nn.Module) -> State:
    found = {}
    for path, block in blocks_of(model).items():
        windows: Any = getattr(block.mix, "fn", None)
        if hasattr(windows, "attn_mask"):
            found[f"{path}.attn.relative_position_index"] = windows.attn.relative_position_index
            if windows.attn_mask is not None:
                found[f"{path}.attn_mask"] = windows.attn_mask
    return found


_FAMILIES: tuple[tuple[str, Any, Any, Any, Rounding], ...] = (
    (VIT, _build_vit, _vit_keys, _is_vit, "ceil"),
    (SWIN, _build_swin, _swin_keys, _is_swin, "ceil"),
    (POOLFORMER, _build_poolformer, _poolformer_keys, _is_poolformer, "floor"),
    (MIXER, _build_mixer, _mixer_keys, _is_mixer, "nearest"),
)
for _official, _build, _keys, _family, _rounding in _FAMILIES:
    CONVERTERS.append(
        Converter(
            system="repa",
            official=_official.partition(" ")[2],
            build=_build,
            ours=partial(_ours, keys=_keys),
            theirs=partial(_theirs, keys=_keys),
            method="repa",
            serves=partial(_serves, family=_family, rounding=_rounding),
        )
    )

_IDLE: dict[str, Any] = {"feature_norm": "BatchNorm", "channel_idle": True, "idle_ratio": 0.75}
for _size, _dims in VITS.items():
    RELEASED[f"RePaViT_{_size.capitalize()}"] = (VIT, {**_IDLE, "pre_norm": True, **_dims})
for _size, _dims in SWINS.items():
    RELEASED[f"RePaSwin_{_size.capitalize()}"] = (SWIN, {**_IDLE, **_dims, "window_size": 7})
for _size in ("s12", "s24", "s36"):
    _layers, _widths = SIZES[_size]
    RELEASED[f"RePaPoolformer_{_size}"] = (
        POOLFORMER,
        {**_IDLE, "layers": _layers, "embed_dims": _widths, "pool_size": POOL_SIZE},
    )
for _size, _dims in MIXERS.items():
    RELEASED[f"RePaMlpMixer_{_size}"] = (MIXER, {**_IDLE, **_dims})
