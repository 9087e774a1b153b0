"""ViT and DeiT of Hugging Face `transformers`.

transformers keeps q, k and v apart, timm in one layer. A DeiT has a distillation token beside the class token: where
only the class token is answered from, it is what timm calls a register; where both are, timm's distilled DeiT.
"""

from functools import partial
from typing import Any

from timm.models.deit import VisionTransformerDistilled
from torch import nn

from ..generic import with_config
from ..keys import KeyMap
from ..registry import register
from .translation import (
    HALF,
    IMAGENET,
    State,
    Translation,
    activation,
    class_token,
    joined,
    label_names,
    plain_size,
    ratio,
    renamed,
)

QKV = (("q", "k", "v"), "qkv")
HEADS = r"pooler\.|mask_token"
"""Parts that are for pre-training, or that only models without a classifier have behind their features."""


@register
def deit_distilled(norm_eps: float = 1e-6, **arguments: Any) -> nn.Module:
    """A DeiT of any dimensions that answers with the mean of its class token's and its distillation token's head."""
    return with_config(
        VisionTransformerDistilled(norm_layer=partial(nn.LayerNorm, eps=norm_eps), **arguments), arguments
    )


def block_keys(theirs: str) -> list[tuple[str, str]]:
    """The parts of a block, of transformers 5 and of transformers 4.

    Args:
        theirs: Where their blocks stand, with {i} for the number.
    """
    return [
        (f"{theirs}.attention.{part}.{{*}}", f"blocks.{{i}}.attn.{ours}.{{*}}")
        for part, ours in (
            ("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("o_proj", "proj"), ("attention.query", "q"),
            ("attention.key", "k"), ("attention.value", "v"), ("output.dense", "proj"),
        )
    ] + [
        (f"{theirs}.{part}.{{*}}", f"blocks.{{i}}.{ours}.{{*}}")
        for part, ours in (
            ("layernorm_before", "norm1"), ("layernorm_after", "norm2"), ("mlp", "mlp"),
            ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2"),
        )
    ]  # fmt: skip


KEYS = KeyMap(
    [
        ("embeddings.cls_token", "cls_token"),
        ("embeddings.distillation_token", "reg_token"),
        ("embeddings.position_embeddings", "pos_embed"),
        ("embeddings.patch_embeddings.projection.{*}", "patch_embed.proj.{*}"),
        *block_keys("layers.{i}"),
        *block_keys("encoder.layer.{i}"),
        ("layernorm.{*}", "norm.{*}"),
        ("classifier.{*}", "head.{*}"),
        ("cls_classifier.{*}", "head.{*}"),
        ("distillation_classifier.{*}", "head_dist.{*}"),
    ]
)


def weights(model: nn.Module, prefix: str, keys: KeyMap = KEYS, left_out: str = HEADS) -> State:
    """The weights of a ViT of transformers under timm's keys.

    Args:
        model: Their model, with or without a classifier.
        prefix: The name under which a model with a classifier has its body.
        keys: The names here and there.
        left_out: A pattern of keys that do not count for the answer.
    """
    inner = {key.removeprefix(f"{prefix}."): value for key, value in model.state_dict().items()}
    return joined(renamed(inner, keys, left_out), *QKV)


def arguments(model: Any, num_classes: int) -> dict[str, Any]:
    """The dimensions of a ViT of transformers, as the arguments of ours."""
    config = model.config
    if config.hidden_size % config.num_attention_heads:
        raise ValueError(f"{config.hidden_size} channels are not a multiple of {config.num_attention_heads} heads")
    return {
        "img_size": plain_size(config.image_size),
        "patch_size": plain_size(config.patch_size),
        "in_chans": config.num_channels,
        "num_classes": num_classes,
        "embed_dim": config.hidden_size,
        "depth": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "qkv_bias": config.qkv_bias,
        "act_layer": activation(config.hidden_act),
        "norm_eps": config.layer_norm_eps,
        **_rates(config),
    }


def _rates(config: Any) -> dict[str, float]:
    """Dropout in training, where there is any."""
    hidden, attention = config.hidden_dropout_prob, config.attention_probs_dropout_prob
    rates = {"pos_drop_rate": hidden, "proj_drop_rate": hidden, "attn_drop_rate": attention}
    return {name: rate for name, rate in rates.items() if rate}


def vit(model: Any) -> Translation:
    """`ViTModel` and `ViTForImageClassification`."""
    config, classifies = model.config, hasattr(model, "classifier")
    mlp = {"mlp_ratio": ratio(config.intermediate_size, config.hidden_size)}
    return Translation(
        name="vit",
        arguments=arguments(model, config.num_labels if classifies else 0) | mlp,
        weights=weights(model, "vit"),
        view={**HALF, "interpolation": "bilinear", "crop_pct": 1.0},
        classes=label_names(config) if classifies else None,
        answer=class_token,
    )


def deit(model: Any) -> Translation:
    """`DeiTModel`, `DeiTForImageClassification` and `DeiTForImageClassificationWithTeacher`."""
    config, both = model.config, hasattr(model, "distillation_classifier")
    classifies = both or hasattr(model, "classifier")
    found = weights(model, "deit")
    if both:
        found["dist_token"] = found.pop("reg_token")
    kind = {} if both else {"reg_tokens": 1}
    mlp = {"mlp_ratio": ratio(config.intermediate_size, config.hidden_size)}
    return Translation(
        name="deit_distilled" if both else "vit",
        arguments=arguments(model, config.num_labels if classifies else 0) | mlp | kind,
        weights=found,
        view={**IMAGENET, "interpolation": "bicubic", "crop_pct": 0.875},
        classes=label_names(config) if classifies else None,
        answer=class_token,
    )
