"""any_size: a backbone that takes images of any size whose sides are multiples of its largest stride.

    ViT, LV-ViT, GFNet      position embeddings are resampled to the plane of patches
    Swin                    windows keep their size; maps are padded to whole windows
    MetaFormer              convolutions take any size; position embeddings, where there are some, are resampled
    global filters          their frequencies are resampled, as GFNet does

Weights that count the tokens of one plane (MLP-Mixer, a token mixer that is a matrix) fit no other plane.
"""

from typing import Any

from timm.layers import Format, PatchEmbed
from timm.models import metaformer as timm_metaformer
from timm.models import swin_transformer, vision_transformer
from torch import nn

from ..layers.layout import AcrossTokens
from ..layers.mixers import FixedTokens, GlobalFilter
from .gfnet import GFNet
from .lvvit import LVViT
from .metaformer import MetaFormer, Stage
from .stems import Stem
from .timm import ShiftedWindows

STAGED = (MetaFormer, timm_metaformer.MetaFormer, swin_transformer.SwinTransformer, GFNet)
PLAIN = (vision_transformer.VisionTransformer, LVViT, GFNet)


def any_size(model: nn.Module) -> nn.Module:
    """Let a backbone take images of other sizes than the one that it was built for, in place; returns it.

    Args:
        model: a ViT, LV-ViT, Swin, MetaFormer or GFNet, with or without methods.

    Raises:
        ValueError: for a model with weights for one plane of patches alone.

    >>> import torch, leanformer as lf
    >>> model = any_size(lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2))
    >>> model(torch.zeros(1, 3, 40, 64)).shape
    torch.Size([1, 1000])
    """
    refuse_fixed(model)
    for module in model.modules():
        if isinstance(module, ShiftedWindows | GlobalFilter | Stage):
            module.any_size = True
        elif isinstance(module, Stem):
            module.dynamic_img_size = True
        elif isinstance(module, PatchEmbed):
            module.strict_img_size = False
    if isinstance(model, vision_transformer.VisionTransformer):
        _patches_as_map(model)
    return model


def refuse_fixed(model: nn.Module) -> None:
    """Refuse a model that fits one size of images, with the reason."""
    if not isinstance(model, (*STAGED, *PLAIN)):
        raise ValueError(
            f"{type(model).__name__} gives no maps for images of any size; those that do: ViT, LV-ViT, Swin, GFNet "
            "and the MetaFormers"
        )
    for path, module in model.named_modules():
        if isinstance(module, FixedTokens | AcrossTokens):
            raise ValueError(
                f"{path} ({type(module).__name__}) has weights for one number of patches, so that it takes images of "
                "one size alone; choose a token mixer that takes any: pooling, attention, depthwise, separable, "
                "identity or global_filter"
            )


def _patches_as_map(model: Any) -> None:
    """timm's ViT resamples positions where its patches come as a map (B, H, W, C)."""
    if type(model.patch_embed) is not PatchEmbed:
        raise ValueError(f"the patch embedding {type(model.patch_embed).__name__} is made for one size of images")
    model.dynamic_img_size = True
    model.patch_embed.flatten, model.patch_embed.output_fmt = False, Format.NHWC
