"""Tiny backbones of every family, for tests over all of them. A new family is one line in BACKBONES."""

import functools
from typing import Any

import torch
from helpers import randomise
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import input_of

VIT: dict[str, Any] = {
    "img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5
}  # fmt: skip
PATCHES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 4, "num_classes": 5}
STAGES: dict[str, Any] = {"img_size": 64, "depths": [1, 1, 1, 1], "dims": [16, 24, 32, 64], "num_classes": 5}

BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit", {**VIT, "drop_path_rate": 0.2}),
    "deit_distilled": ("deit_tiny_distilled_patch16_224", VIT),
    "deit3": ("deit3_small_patch16_224", VIT),
    "dinov2_reg": ("vit_small_patch14_reg4_dinov2", VIT),
    "vit_qk_norm_avg": ("vit", {**VIT, "qk_norm": True, "class_token": False, "global_pool": "avg"}),
    "vit_map_pool": ("vit", {**VIT, "class_token": False, "global_pool": "map"}),
    "swin": (
        "swin",
        {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
         "num_classes": 5},
    ),
    "mixer": ("mixer", PATCHES),
    "resmlp": ("resmlp", PATCHES),
    "gmlp": ("gmlp", PATCHES),
    "timm_poolformer": (
        "timm_metaformer",
        {**STAGES, "token_mixers": ["pooling"] * 4, "mlp_act": "gelu", "mlp_bias": True, "use_mlp_head": False,
         "layer_scale_init_values": 0.1, "res_scale_init_values": None, "downsample_norm": None},
    ),
    "timm_caformer": ("timm_metaformer", STAGES),
    "poolformer": ("poolformer_s12", {**STAGES, "layer_scale_init_values": 0.1, "drop_path_rate": 0.2}),
    "caformer": ("caformer_s18", STAGES),
    "lvvit": ("lvvit", {**VIT, "stem": "4_2"}),
    "lvvit_plus": (
        "lvvit", {**VIT, "img_size": 64, "patch_size": 16, "stem": "4c", "aux": "unused", "distilled": True}
    ),
    "gfnet": (
        "gfnet",
        {"img_size": 32, "patch_size": 4, "embed_dim": [16, 24, 32], "depth": [1, 2, 1], "layer_scale": 0.1,
         "num_classes": 5},
    ),
}  # fmt: skip


@functools.cache
def backbone(family: str) -> nn.Module:
    """The family's tiny model in evaluation mode with weights away from their start. Shared: never change it."""
    name, arguments = BACKBONES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # not what the test happens to have drawn that asks first
        return randomise(lf.create(name, **arguments)).eval()


def images(model: nn.Module, batch: int = 2) -> Tensor:
    """Random images of the size and dtype of the model."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, *input_of(model)["input_size"], generator=generator).to(next(model.parameters()).dtype)
