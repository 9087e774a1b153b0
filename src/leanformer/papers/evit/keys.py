"""Official EViT checkpoints: EViT has no parameters of its own, so the official class has DeiT's keys."""

import re
from typing import Any

from torch import nn

from ...backbones import create
from ...core import apply
from ...methods import EViT
from ..door import CONVERTERS, RELEASED, VIT_BLOCKS, Converter, State, refuse_options, take

OFFICIAL = "youweiliang/evit evit.EViT"
PLAIN = re.compile(
    r"cls_token|pos_embed|patch_embed\.proj\.(weight|bias)|(norm|head)\.(weight|bias)"
    r"|blocks\.\d+\.(norm[12]|attn\.(qkv|proj)|mlp\.fc[12])\.(weight|bias)"
)
"""DeiT's keys, all of them."""
SAME = ("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads", "mlp_ratio")
RATES = ("qkv_bias", "drop_path_rate", "attn_drop_rate")
NEUTRAL = {"distilled": False, "weight_init": "", "qk_scale": None, "representation_size": None, "pretrained": False}
"""Options without a counterpart, at the value that changes nothing. The official distilled EViT does not work."""


def _build(config: dict[str, Any], state: State) -> nn.Module:
    left = dict(config)
    arguments = take(left, *SAME, *RATES)
    dropout = left.pop("drop_rate", 0.0)
    if dropout:
        arguments |= {"pos_drop_rate": dropout, "proj_drop_rate": dropout}
    depth = arguments.get("depth", 12)
    rates = _rates(left, depth)
    fuse = bool(left.pop("fuse_token", False))
    refuse_options(left, NEUTRAL, "EViT")
    model = create("deit", **arguments)
    at = [block for block, rate in enumerate(rates) if rate < 1]
    if not at:
        return model
    kept = sorted({rates[block] for block in at})
    keep_rate = kept[0] if len(kept) == 1 else tuple(rates[block] for block in at)
    return apply(model, EViT(keep_rate=keep_rate, at=tuple(at), fuse_tokens=fuse))


def _rates(left: dict[str, Any], depth: int) -> list[float]:
    """The keep rate of every block, from `keep_rate` or from the builders' `base_keep_rate` and `drop_loc`."""
    if "base_keep_rate" in left or "drop_loc" in left:
        if "keep_rate" in left:
            raise ValueError("give keep_rate, or base_keep_rate and drop_loc, not both")
        base, places = left.pop("base_keep_rate", 0.7), left.pop("drop_loc", (3, 6, 9))
        return [base if block in places else 1 for block in range(depth)]
    rates = list(left.pop("keep_rate", (1,)))
    rates = rates * depth if len(rates) == 1 else rates
    if len(rates) != depth:
        raise ValueError(f"keep_rate has {len(rates)} values for {depth} blocks")
    return rates


def _ours(state: State, model: nn.Module) -> State:
    return {VIT_BLOCKS.ours(key): value for key, value in state.items()}


def _theirs(state: State, model: nn.Module) -> State:
    renamed = {VIT_BLOCKS.theirs(key): value for key, value in state.items()}
    foreign = [key for key in renamed if not PLAIN.fullmatch(key)]
    if foreign:
        raise ValueError(f"the official EViT is a plain DeiT, and this {type(model).__name__} has {foreign[0]}")
    return renamed


CONVERTERS.append(Converter("evit", "evit.EViT", _build, _ours, _theirs, method="evit"))

for _name, _dim, _heads in (("small", 384, 6), ("base", 768, 12)):
    _config = {"embed_dim": _dim, "num_heads": _heads, "base_keep_rate": 0.7, "drop_loc": (3, 6, 9)}
    RELEASED[f"deit_{_name}_patch16_shrink_base"] = (OFFICIAL, _config)
