"""DeiT at any input size, with positions resampled the way DeiT's own code does it.

Where an image has another number of patches than the model was built for, the grid of position embeddings is
resampled by plain bicubic interpolation. timm interpolates with antialiasing, which is another function even when
the grid grows, and would answer differently from the published models.

B batch, H x W patches, C channels.
"""

from functools import partial
from typing import Any

import torch
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from .generic import with_config
from .registry import register


class DeiT(VisionTransformer):
    """timm's ViT with one class token, for square and other images of any size.

    >>> DeiT(img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2)(torch.zeros(1, 3, 48, 40)).shape
    torch.Size([1, 1000])
    """

    antialias = False
    """How positions are resampled, here and by `lf.resize`."""

    def __init__(self, **arguments: Any):
        super().__init__(**{**arguments, "dynamic_img_size": True})

    def _pos_embed(self, x: Tensor) -> Tensor:
        assert self.pos_embed is not None and self.cls_token is not None
        size, built = [x.shape[1], x.shape[2]], [*self.patch_embed.grid_size]
        positions = resample_abs_pos_embed(self.pos_embed, size, built, antialias=self.antialias)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x.flatten(1, 2)], dim=1)  # (B, 1 + HW, C)
        return self.pos_drop(x + positions)


@register
def deit(norm_eps: float = 1e-6, **arguments: Any) -> nn.Module:
    """A DeiT of any dimensions; the defaults are those of DeiT-B."""
    return with_config(DeiT(norm_layer=partial(nn.LayerNorm, eps=norm_eps), **arguments), arguments)
