"""LV-ViT (Jiang et al., NeurIPS 2021): the backbone of SiT's and EViT's larger models, trained with token labels.

    leanformer train --recipe lvvit_s --teacher annotator=dm_nfnet_f6:nfnet_f6.pth --data imagenet/ --output runs/lv
    leanformer train --recipe lvvit_s --objective token_labels:labels=maps/,class_labels=annotator,smoothing=0.1 …

The annotator, any classifier, gives every patch a label of its own; or it has done so before, once for every image:
`train.write_label_maps`. EViT's paper has LV-ViT-S at 83.3% top-1, RePa's at 81.4. 300 epochs at batch 1024; no
training time is stated.

There are two official classes: TokenLabeling's `LV_ViT`, and SiT's `LVViT` as it serves as a teacher.
"""

from typing import Any

from torch import nn

from ..backbones import create
from ..backbones.lvvit_models import CONFIGS
from ..core import card_of
from ..train.recipe import Recipe
from .door import CONVERTERS, RELEASED, VIT_BLOCKS, Converter, State, refuse_options, take
from .published import Published, publish

# Official keys

LV_VIT = "zihangJiang/TokenLabeling LV_ViT"
SIT_TEACHER = "Sense-X/SiT models.lvvit.LVViT(distillation_type=None)"

SAME = ("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads", "mlp_ratio")
ALSO_SAME = ("qkv_bias", "skip_lam", "attn_drop_rate", "drop_path_rate")
APART = ("stage_blocks", "keeping_ratio", "distillation_type", "with_cp", "return_dense", "mix_token")
"""Arguments that say how to slim or to train. The objective of token labels asks for dense answers and mixing itself:
a model that mixed its tokens under any other objective would learn from wrong targets."""


def arguments_of(config: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Our arguments for an official constructor's `config`, whose own defaults fill what it leaves out.

    >>> arguments_of({"p_emb": "4c", "skip_lam": 2.0}, {"embed_dim": 384})
    {'embed_dim': 384, 'skip_lam': 2.0, 'stem': '4c'}
    """
    left = {**defaults, **config}
    arguments = take(left, *SAME, *ALSO_SAME)
    for key in APART:
        left.pop(key, None)
    stem = left.pop("p_emb", "naive")
    arguments["stem"] = stem if stem in ("4_2", "4_2_128", "4c", "6c") else "naive"
    if left.pop("conv_distillation", False):
        arguments["distilled"] = True
    dropout = left.pop("drop_rate", 0.0)
    if dropout:
        arguments |= {"pos_drop_rate": dropout, "proj_drop_rate": dropout}
    neutral = {"drop_path_decay": "linear", "order": ("tr",) * arguments.get("depth", 0)}
    refuse_options(left, neutral, "LV-ViT")
    return arguments


def _build_lv_vit(config: dict[str, Any], state: State) -> nn.Module:
    defaults = {"embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_ratio": 4.0, "skip_lam": 1.0, "p_emb": "4_2"}
    if config.get("order"):
        config = {**config, "depth": len(config["order"])}
    aux = "max" if config.get("return_dense") else "none"
    return create("lvvit", aux=aux, **arguments_of(config, defaults))


def build_sit_backbone(config: dict[str, Any], state: State) -> nn.Module:
    """SiT's LV-ViT without slimming: its teacher, and what its student is made from."""
    defaults = {"num_heads": 12, "mlp_ratio": 4.0, "skip_lam": 1.0, "p_emb": "naive"}
    return create("lvvit", aux="unused", **arguments_of(config, defaults))


def _ours(state: State, model: nn.Module) -> State:
    return {VIT_BLOCKS.ours(key): value for key, value in state.items()}


def _theirs(state: State, model: nn.Module) -> State:
    card = card_of(model)
    if card.fused:
        raise ValueError("a fused LV-ViT has no official form; convert the model before lf.fuse")
    if card.claims:
        raise ValueError(f"an LV-ViT with {', '.join(method.name for method in card.methods)} has no official form")
    return {VIT_BLOCKS.theirs(key): value for key, value in state.items()}


CONVERTERS += [
    Converter("lvvit", "LV_ViT", _build_lv_vit, _ours, _theirs),
    Converter("lvvit", "LVViT(distillation_type=None)", build_sit_backbone, _ours, _theirs),
]


def _official_config(name: str) -> dict[str, Any]:
    config = {"mlp_ratio": 3.0, "stem": "4_2", **CONFIGS[name]}
    plus = config.pop("aux", None) == "unused"
    config["p_emb"] = config.pop("stem")
    return config if plus else {**config, "return_dense": True, "mix_token": True}


for _name in CONFIGS:
    _official = SIT_TEACHER if _name.startswith("lvvit_plus") else LV_VIT
    RELEASED[_name] = (_official, _official_config(_name))

# Recipes

TOKEN_LABELS: dict[str, Any] = {
    "objective": "token_labels:class_labels=annotator,smoothing=0.1", "mixup": 0.0, "cutmix": 0.0,
    "label_smoothing": 0.0,
}  # fmt: skip
"""Settings of a recipe that learns token labels: images are mixed by mix-token and labels smoothed by the objective."""
ANNOTATOR = "annotator=dm_nfnet_f6"
RECIPE = Recipe(batch_size=1024, learning_rate=1.6e-3, ema=0.99992, **TOKEN_LABELS)


def token_labelled(name: str, drop_path: float, top1: str = "") -> Published:
    """The recipe of an LV-ViT, which has the model's name."""
    return Published(
        name=name,
        model=name,
        recipe=RECIPE.replace(drop_path=drop_path),
        teacher=ANNOTATOR,
        top1=top1,
        note="TokenLabeling's settings; its annotator is NFNet-F6",
    )


publish(
    [
        token_labelled("lvvit_t", 0.1),
        token_labelled("lvvit_s", 0.1, "83.3"),
        token_labelled("lvvit_m", 0.2),
        token_labelled("lvvit_l", 0.3),
    ]
)
