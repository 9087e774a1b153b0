"""DINOv2 of Hugging Face `transformers`, with and without registers.

    [class | registers | patches + positions] → blocks → norm → [class ‖ mean of the patches] → linear

The class token's position never changes, so it is added to the class token once. Position embeddings of another image
size are resampled as transformers does it, which is not timm's way.

B images, H x W patches, R registers, C channels.
"""

from functools import partial
from typing import Any

import torch
from timm.layers import SwiGLUPacked, resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ..generic import with_config
from ..keys import KeyMap
from ..registry import register
from .transformers_vit import QKV, arguments, block_keys
from .translation import IMAGENET, State, Translation, class_token, joined, label_names, ratio, renamed


class Dinov2(VisionTransformer):
    """timm's ViT with DINOv2's head, for images of any size.

    >>> Dinov2(img_size=28, patch_size=14, embed_dim=8, depth=1, num_heads=2)(torch.zeros(1, 3, 42, 28)).shape
    torch.Size([1, 1000])
    """

    def __init__(self, *, mean_patches: bool = True, antialias: bool = False, num_classes: int = 1000, **given: Any):
        super().__init__(**{**given, "dynamic_img_size": True, "no_embed_class": True, "num_classes": 0})
        self.mean_patches, self.antialias = mean_patches, antialias
        self.head_hidden_size = self.embed_dim * (2 if mean_patches else 1)
        self.reset_classifier(num_classes)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Give the model a fresh head for so many classes; 0 for none."""
        if global_pool not in (None, self.global_pool):
            raise ValueError(f"DINOv2 pools by '{self.global_pool}', not by '{global_pool}'")
        like, self.num_classes = next(self.parameters()), num_classes
        head = nn.Linear(self.head_hidden_size, num_classes) if num_classes else nn.Identity()
        self.head = head.to(like.device, like.dtype).train(self.training)

    def pool(self, x: Tensor, pool_type: str | None = None) -> Tensor:
        """The class token, with the mean of the patches behind it where the head takes both."""
        if not self.mean_patches:
            return x[:, 0]  # (B, C)
        return torch.cat([x[:, 0], x[:, self.num_prefix_tokens :].mean(1)], dim=1)  # (B, 2C)

    def _pos_embed(self, x: Tensor) -> Tensor:
        assert self.pos_embed is not None and self.cls_token is not None
        size, built = [x.shape[1], x.shape[2]], [*self.patch_embed.grid_size]
        positions = resample_abs_pos_embed(self.pos_embed, size, built, num_prefix_tokens=0, antialias=self.antialias)
        first = [token for token in (self.cls_token, self.reg_token) if token is not None]
        prefix = torch.cat(tuple(first), dim=1).expand(x.shape[0], -1, -1)  # (B, 1 + R, C)
        return self.pos_drop(torch.cat([prefix, x.flatten(1, 2) + positions], dim=1))  # (B, 1 + R + HW, C)


@register
def dinov2(norm_eps: float = 1e-6, swiglu: bool = False, **given: Any) -> nn.Module:
    """A DINOv2 of any dimensions; `swiglu` gates its FFN, as the largest one's."""
    kind: dict[str, Any] = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU} if swiglu else {}
    model = Dinov2(norm_layer=partial(nn.LayerNorm, eps=norm_eps), **{"init_values": 1.0, **given, **kind})
    return with_config(model, given)


KEYS = KeyMap(
    [
        ("embeddings.cls_token", "cls_token"),
        ("embeddings.register_tokens", "reg_token"),
        ("embeddings.position_embeddings", "pos_embed"),
        ("embeddings.patch_embeddings.projection.{*}", "patch_embed.proj.{*}"),
        ("encoder.layer.{i}.norm1.{*}", "blocks.{i}.norm1.{*}"),
        ("encoder.layer.{i}.norm2.{*}", "blocks.{i}.norm2.{*}"),
        ("encoder.layer.{i}.layer_scale1.lambda1", "blocks.{i}.ls1.gamma"),
        ("encoder.layer.{i}.layer_scale2.lambda1", "blocks.{i}.ls2.gamma"),
        ("encoder.layer.{i}.mlp.weights_in.{*}", "blocks.{i}.mlp.fc1.{*}"),
        ("encoder.layer.{i}.mlp.weights_out.{*}", "blocks.{i}.mlp.fc2.{*}"),
        ("encoder.layer.{i}.mlp.down_proj.{*}", "blocks.{i}.mlp.fc2.{*}"),
        *block_keys("encoder.layer.{i}"),
        ("layernorm.{*}", "norm.{*}"),
        ("classifier.{*}", "head.{*}"),
    ]
)


def translate(model: Any) -> Translation:
    """`Dinov2Model`, `Dinov2ForImageClassification`, and both with registers."""
    config, classifies = model.config, hasattr(model, "classifier")
    found = _weights(model)
    blocks = {"init_values": float(config.layerscale_value), "swiglu": config.use_swiglu_ffn}
    blocks["mlp_ratio"] = ratio(found["blocks.0.mlp.fc1.weight"].shape[0], config.hidden_size)
    registers = getattr(config, "num_register_tokens", 0)
    if registers:  # that model resamples its positions with antialiasing, the other one without
        blocks |= {"reg_tokens": registers, "antialias": True}
    given = arguments(model, config.num_labels if classifies else 0)
    return Translation(
        name="dinov2",
        arguments=given | blocks | {"mean_patches": classifies},
        weights=found,
        view={**IMAGENET, "interpolation": "bicubic", "crop_pct": 0.875},
        classes=label_names(config) if classifies else None,
        answer=class_token,
    )


def _weights(model: Any) -> State:
    prefixes = ("dinov2_with_registers.", "dinov2.")
    inner = dict(model.state_dict())
    for prefix in prefixes:
        inner = {key.removeprefix(prefix): value for key, value in inner.items()}
    found = joined(renamed(inner, KEYS, "mask_token"), *QKV)
    found = joined(found, ("gate_proj", "up_proj"), "fc1")
    found["cls_token"] = found["cls_token"] + found["pos_embed"][:, :1]
    found["pos_embed"] = found["pos_embed"][:, 1:]
    return found
