"""EViT (Liang et al., ICLR 2022): DeiTs that lose inattentive tokens in their 4th, 7th and 10th block.

    leanformer train --recipe evit_deit_small_0.7 --data imagenet/ --output runs/evit_deit_small
    leanformer train --recipe evit_deit_small_0.7_finetune --checkpoint deit_small.pth --data imagenet/ --output runs/f

EViT has no parameters of its own: the official class has DeiT's keys. No training time is stated.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from ..backbones import create
from ..core import apply, blocks_of
from ..measure import Count, count_modules
from ..methods import EViT
from .door import CONVERTERS, RELEASED, VIT_BLOCKS, Converter, State
from .lvvit import ANNOTATOR
from .lvvit import RECIPE as LVVIT_RECIPE
from .published import DEIT, Published, publish
from .table import PaperTables, Row

# Official keys

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
    arguments = {key: left.pop(key) for key in (*SAME, *RATES) if key in left}
    dropout = left.pop("drop_rate", 0.0)
    if dropout:
        arguments |= {"pos_drop_rate": dropout, "proj_drop_rate": dropout}
    depth = arguments.get("depth", 12)
    rates = _rates(left, depth)
    fuse = bool(left.pop("fuse_token", False))
    for key, value in left.items():
        if value is not None and (key not in NEUTRAL or value != NEUTRAL[key]):
            raise ValueError(f"the official option {key}={value!r} has no counterpart in our EViT")
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

# Tables 2, 3, 4 and 6

SAME_PRINT = "the paper prints 2.5 G with and without fusion"
LAYERS = (4, 7, 10)
DEIT_S, DEIT_B, LVVIT_S = "deit_small_patch16_224", "deit_base_patch16_224", "lvvit_s"
NAMES = {DEIT_S: "DeiT-S", DEIT_B: "DeiT-B", LVVIT_S: "LV-ViT-S"}


@dataclass(frozen=True)
class Setting:
    """A published row: keep rates, image size, accuracies, images/s on an A100, MACs in G, README's MACs in G."""

    keep: float | tuple[float, ...]
    top1: str
    top5: str
    speed: str
    macs: str
    readme: str = ""
    size: int = 224
    layers: tuple[int, ...] = LAYERS
    trained: str = ""
    """Where the row is fine-tuned from another size."""


# Table 2: DeiT-S, without and with fusion
WITHOUT_FUSION = (
    Setting(1.0, "79.8", "94.9", "2923", "5.0"),
    Setting(0.9, "79.9", "94.9", "3201", "4.3", "4.0"),
    Setting(0.8, "79.7", "94.8", "3772", "3.7", "3.5"),
    Setting(0.7, "79.4", "94.7", "4249", "3.2", "3.0"),
    Setting(0.6, "78.9", "94.5", "4967", "2.8", "2.6"),
    Setting(0.5, "78.4", "94.1", "5325", "2.5", "2.3"),
)
WITH_FUSION = (
    Setting(0.9, "79.8", "95.0", "3197", "4.3", "4.0"),
    Setting(0.8, "79.8", "94.9", "3619", "3.7", "3.5"),
    Setting(0.7, "79.5", "94.8", "4385", "3.2", "3.0"),
    Setting(0.6, "78.9", "94.5", "4722", "2.8", "2.6"),
    Setting(0.5, "78.5", "94.2", "5408", "2.5", "2.3"),
)
# Table 3: DeiT-B and LV-ViT-S
BASE = (
    Setting(1.0, "81.8", "95.6", "1295", "18.3"),
    Setting(0.9, "81.8", "95.6", "1441", "16.0"),
    Setting(0.8, "81.7", "95.4", "1637", "13.8"),
    Setting(0.7, "81.3", "95.3", "2053", "12.0"),
    Setting(0.6, "80.9", "95.1", "2177", "10.5"),
    Setting(0.5, "80.0", "94.5", "2482", "9.2"),
)
LV = (
    Setting(1.0, "83.3", "", "2112", "6.6"),
    Setting(0.7, "83.0", "96.3", "2954", "4.7"),
    Setting(0.5, "82.5", "96.2", "3603", "3.9"),
)
# Table 4: other layers and rates
LOCATIONS = (
    Setting((0.7, 0.7, 0.7), "79.50", "94.77", "4385", "3.25", layers=(4, 7, 10)),
    Setting((0.64, 0.7, 0.7), "79.57", "94.80", "4271", "3.23", layers=(5, 7, 10)),
    Setting((0.74, 0.7, 0.7), "79.47", "94.72", "4261", "3.23", layers=(3, 7, 10)),
    Setting((0.7, 0.64, 0.7), "79.64", "94.86", "4299", "3.25", layers=(4, 8, 10)),
    Setting((0.7, 0.75, 0.7), "79.54", "94.78", "4250", "3.25", layers=(4, 6, 10)),
)
# Table 6: larger images
LARGER = (
    Setting(1.0, "79.8", "94.9", "2923", "4.99"),
    Setting(0.5, "79.3", "94.7", "3788", "3.33", size=256),
    Setting(0.5, "80.1", "95.0", "3138", "4.38", size=288),
    Setting(0.5, "81.0", "95.6", "2905", "4.97", size=304),
    Setting(0.6, "80.0", "95.0", "3524", "3.79", size=256),
    Setting(0.6, "81.0", "95.4", "2927", "4.99", size=288),
    Setting(0.7, "80.3", "95.3", "2870", "5.01", size=272),
)
LV_LARGER = (
    Setting(1.0, "83.3", "", "2112", "6.60"),
    Setting(1.0, "84.4", "", "557", "21.9", size=384, trained="224 → "),
    Setting(0.9, "83.6", "96.5", "1956", "6.79", size=240),
    Setting(0.8, "83.6", "96.6", "1901", "6.93", size=256),
    Setting(0.7, "83.5", "96.5", "2102", "6.22", size=256),
    Setting(0.7, "83.7", "96.6", "1829", "7.07", size=272),
    Setting(0.5, "83.4", "96.5", "1758", "7.38", size=304),
    Setting(0.7, "84.7", "97.1", "548", "21.5", size=448, trained="272 → "),
)


def build(backbone: str, setting: Setting, fuse: bool) -> nn.Module:
    """The row's model; layers are counted from 1 in the paper and follow the depth for LV-ViT."""
    at = None if setting.layers == LAYERS else tuple(layer - 1 for layer in setting.layers)
    model = create(backbone, img_size=setting.size)
    return apply(model, EViT(keep_rate=setting.keep, at=at, fuse_tokens=fuse))


def attention_twice(count: Count, model: nn.Module) -> tuple[float, float]:
    """Parameters in M and MACs in G with both attention products counted twice."""
    parts = count_modules(model)
    products = sum(
        parts[f"{path}.mix"].macs - parts[f"{path}.mix.fn.qkv"].macs - parts[f"{path}.mix.fn.proj"].macs
        for path in blocks_of(model)
    )
    return count.parameters / 1e6, (count.macs + products) / 1e9


def _row(table: str, backbone: str, fuse: bool, setting: Setting) -> Row:
    name = NAMES[backbone]
    if setting.keep != 1:
        keep = "/".join(f"{k:g}" for k in setting.keep) if isinstance(setting.keep, tuple) else f"{setting.keep:g}"
        layers = f" at {setting.layers}" if isinstance(setting.keep, tuple) else ""
        name = f"EViT-{name} {keep}{layers}{'' if fuse else ' no fusion'}"
    if setting.size != 224:
        name += f" @ {setting.trained}{setting.size}"
    return Row(
        table=table,
        model=name,
        build=partial(build, backbone, setting, fuse),
        macs=setting.macs,
        differs=SAME_PRINT if setting.keep == 0.5 and not fuse else "",
        counted=attention_twice if backbone != LVVIT_S else None,
        published={
            "README MACs": setting.readme,
            "top-1": setting.top1,
            "top-5": setting.top5,
            "A100 img/s": setting.speed,
        },
    )


TABLES = PaperTables(
    [
        *(_row("2a", DEIT_S, False, setting) for setting in WITHOUT_FUSION),
        *(_row("2b", DEIT_S, True, setting) for setting in WITH_FUSION),
        *(_row("3a", DEIT_B, True, setting) for setting in BASE),
        *(_row("3b", LVVIT_S, True, setting) for setting in LV),
        *(_row("4", DEIT_S, True, setting) for setting in LOCATIONS),
        *(_row("6a", DEIT_S, True, setting) for setting in LARGER),
        *(_row("6b", LVVIT_S, True, setting) for setting in LV_LARGER),
    ],
    """EViT's Tables 2, 3, 4 and 6: MACs of the paper, of the published code's README, and ours.

The paper's DeiT rows are too high, by 7 to 8 % for DeiT-S (5.0 G instead of 4.6 G) and by 4 % for DeiT-B: they follow
when every attention product is counted twice. The README of the published code counts it once, as we do, and prints
one figure for both variants, which is that with fusion. The paper's LV-ViT rows count it once, too.

Images/s are on one A100 at batch 128; only the paper's Figure 4 uses the largest batch that fits. The paper trained on
two A100s; the released script starts eight processes of 256 images.""",
)

# Recipes

RECIPE = DEIT.replace(batch_size=2048, learning_rate=2e-3, drop_path=0.1)
FINE = DEIT.replace(
    epochs=30, batch_size=2048, learning_rate=8e-5, min_learning_rate=2e-6, weight_decay=1e-6, warmup_epochs=0,
    frozen_statistics=True,
)  # fmt: skip
LONG = {450: ("80.2", "81.0"), 600: ("81.0", "81.3")}
"""Epochs → top-1 of EViT-DeiT-S at 0.7 from scratch, and from a trained DeiT-S."""

publish(
    Published(
        name=f"evit_deit_{size}_{setting.keep}",
        model=backbone,
        methods=(EViT(keep_rate=setting.keep),),
        recipe=RECIPE,
        top1=setting.top1,
        note="the paper, and run_code.sh; from a trained DeiT instead of from scratch it gains 0.8 to 1.3 points",
    )
    for size, backbone, settings in (("small", DEIT_S, WITH_FUSION), ("base", DEIT_B, BASE))
    for setting in settings
    if setting.keep != 1
)
publish(
    Published(
        name=f"evit_deit_small_0.7_{epochs}",
        model=DEIT_S,
        methods=(EViT(keep_rate=0.7),),
        recipe=RECIPE.replace(epochs=epochs),
        top1=f"{scratch} ({oracle} from DeiT-S)",
        note="the paper's longer training",
    )
    for epochs, (scratch, oracle) in LONG.items()
)
publish(
    [
        Published(
            name="evit_deit_small_0.7_finetune",
            model=DEIT_S,
            methods=(EViT.finetune(keep_rate=0.7),),
            recipe=FINE,
            note="finetune.sh, from a trained DeiT-S; the model stays in evaluation mode",
        )
    ]
)
publish(
    Published(
        name=f"evit_lvvit_small_{setting.keep}",
        model=LVVIT_S,
        methods=(EViT(keep_rate=setting.keep),),
        teacher=ANNOTATOR,
        recipe=LVVIT_RECIPE.replace(drop_path=0.1),
        top1=setting.top1,
        note="LV-ViT's settings; token labels only for the tokens that remain; code was never released",
    )
    for setting in LV
    if setting.keep != 1
)
