"""Swin of Hugging Face `transformers`.

Their stages end with the merging of patches, timm's begin with it; their classifier takes the mean of all tokens, as
timm's does.
"""

from typing import Any

from torch import nn

from ..keys import KeyMap
from .transformers_vit import QKV
from .translation import IMAGENET, Translation, joined, label_names, mean_token, plain_size, renamed

PARTS = {
    "attention.q_proj": "attn.q",
    "attention.k_proj": "attn.k",
    "attention.v_proj": "attn.v",
    "attention.o_proj": "attn.proj",
    "attention.relative_position_bias": "attn",
    "attention.self.query": "attn.q",
    "attention.self.key": "attn.k",
    "attention.self.value": "attn.v",
    "attention.self": "attn",
    "attention.output.dense": "attn.proj",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "mlp": "mlp",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}
"""Parts of a block as transformers 5 and 4 name them → timm's."""


def translate(model: Any) -> Translation:
    """`SwinModel` and `SwinForImageClassification`."""
    config, classifies = model.config, hasattr(model, "classifier")
    check_windows(config.image_size, config.patch_size, len(config.depths), config.window_size)
    size = plain_size(config.image_size)
    if not isinstance(size, int) and size[0] != size[1]:  # where one side is one window, they shift along neither
        raise ValueError(f"its images are {size[0]} x {size[1]}, and only square ones are computed as timm does")
    if config.use_absolute_embeddings:
        raise ValueError("it has absolute position embeddings, and timm's Swin has none")
    if config.hidden_act != "gelu":
        raise ValueError(f"its activation is '{config.hidden_act}', and timm's Swin has gelu")
    check_eps(model)
    inner = {key.removeprefix("swin."): value for key, value in model.state_dict().items()}
    return Translation(
        name="swin",
        arguments={
            "img_size": size,
            "patch_size": plain_size(config.patch_size),
            "in_chans": config.num_channels,
            "num_classes": config.num_labels if classifies else 0,
            "embed_dim": config.embed_dim,
            "depths": list(config.depths),
            "num_heads": list(config.num_heads),
            "window_size": plain_size(config.window_size),
            "mlp_ratio": float(config.mlp_ratio),
            "qkv_bias": config.qkv_bias,
            "drop_path_rate": config.drop_path_rate,
        },
        weights=joined(renamed(inner, _keys(len(config.depths)), "relative_position_index|mask_token"), *QKV),
        view={**IMAGENET, "interpolation": "bicubic", "crop_pct": 1.0},
        classes=label_names(config) if classifies else None,
        answer=mean_token,
    )


def _keys(stages: int) -> KeyMap:
    block = "encoder.layers.{s}.blocks.{i}"
    return KeyMap(
        [
            ("embeddings.patch_embeddings.projection.{*}", "patch_embed.proj.{*}"),
            ("embeddings.norm.{*}", "patch_embed.norm.{*}"),
            *((f"{block}.{part}.{{*}}", f"layers.{{s}}.blocks.{{i}}.{ours}.{{*}}") for part, ours in PARTS.items()),
            *(
                (f"encoder.layers.{stage}.downsample.{{*}}", f"layers.{stage + 1}.downsample.{{*}}")
                for stage in range(stages)
            ),
            ("layernorm.{*}", "norm.{*}"),
            ("classifier.{*}", "head.fc.{*}"),
        ]
    )


def check_windows(img_size: Any, patch_size: Any, stages: int, window: Any) -> None:
    """Refuse maps that windows do not fill exactly: timm shifts a map before it pads it, the others after that."""
    sides = [plain_size(each) for each in (img_size, patch_size, window)]
    sizes, patches, windows = ([side, side] if isinstance(side, int) else side for side in sides)
    for size, patch, wide in zip(sizes, patches, windows):
        for stage in range(stages):
            if size % (patch * 2**stage) or size // (patch * 2**stage) % wide:
                raise ValueError(
                    f"stage {stage} has a map of {size / (patch * 2**stage):g} places a side, which windows of {wide} "
                    f"do not fill exactly; multiples of {patch * wide * 2 ** (stages - 1)} pixels would do"
                )


def check_eps(model: nn.Module) -> None:
    """Refuse layer norms with another epsilon than timm's Swin has."""
    found = {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)}
    if found != {1e-5}:
        raise ValueError(f"its layer norms have the epsilon {sorted(found)[0]}, and timm's Swin has 1e-05")
