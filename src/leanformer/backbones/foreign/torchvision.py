"""torchvision's VisionTransformer and SwinTransformer.

torchvision keeps q, k and v in one layer, as timm does: only names differ. Its Swin takes images of any size and does
not say of which it was trained on: 224 pixels, unless `lf.adopt(model, arguments={"img_size": 256})` says another.
"""

from typing import Any

from torch import nn

from ..keys import KeyMap
from .swin import check_eps, check_windows
from .translation import IMAGENET, Translation, ratio, renamed

VIT_KEYS = KeyMap(
    [
        ("class_token", "cls_token"),
        ("conv_proj.{*}", "patch_embed.proj.{*}"),
        ("encoder.pos_embedding", "pos_embed"),
        *(
            (f"encoder.layers.encoder_layer_{{i}}.{theirs}", f"blocks.{{i}}.{ours}")
            for theirs, ours in {
                "ln_1.{*}": "norm1.{*}",
                "ln_2.{*}": "norm2.{*}",
                "self_attention.in_proj_{*}": "attn.qkv.{*}",
                "self_attention.out_proj.{*}": "attn.proj.{*}",
                "mlp.0.{*}": "mlp.fc1.{*}",
                "mlp.3.{*}": "mlp.fc2.{*}",
            }.items()
        ),
        ("encoder.ln.{*}", "norm.{*}"),
        ("heads.head.{*}", "head.{*}"),
    ]
)


def vit(model: Any) -> Translation:
    """`VisionTransformer`, such as `torchvision.models.vit_b_16()`."""
    if not isinstance(model.conv_proj, nn.Conv2d):
        raise ValueError("it has a stem of several convolutions, and timm's ViT has one")
    if model.representation_size is not None:
        raise ValueError("its head has two layers (representation_size), and timm's ViT has one")
    rates = {"pos_drop_rate": model.dropout, "proj_drop_rate": model.dropout, "attn_drop_rate": model.attention_dropout}
    return Translation(
        name="vit",
        arguments={
            "img_size": model.image_size,
            "patch_size": model.patch_size,
            "num_classes": model.num_classes,
            "embed_dim": model.hidden_dim,
            "depth": len(model.encoder.layers),
            "num_heads": model.encoder.layers[0].num_heads,
            "mlp_ratio": ratio(model.mlp_dim, model.hidden_dim),
            "norm_eps": model.encoder.ln.eps,
            **{name: rate for name, rate in rates.items() if rate},
        },
        weights=renamed(model.state_dict(), VIT_KEYS),
        view={**IMAGENET, "interpolation": "bilinear", "crop_pct": 0.875},
    )


def swin(model: Any, img_size: int = 224) -> Translation:
    """`SwinTransformer`, such as `torchvision.models.swin_t()`; not its second version."""
    stages: list[Any] = [stage for stage in list(model.features)[1:] if isinstance(stage, nn.Sequential)]
    blocks = [stage[0] for stage in stages]
    if any(type(block).__name__ != "SwinTransformerBlock" for block in blocks):
        raise ValueError(f"its block {type(blocks[0]).__name__} is not understood; understood: SwinTransformerBlock")
    conv, first = model.features[0][0], blocks[0]
    check_windows(img_size, conv.kernel_size, len(stages), first.attn.window_size)
    check_eps(model)
    return Translation(
        name="swin",
        arguments={
            "img_size": img_size,
            "patch_size": list(conv.kernel_size),
            "num_classes": model.num_classes,
            "embed_dim": conv.out_channels,
            "depths": [len(stage) for stage in stages],
            "num_heads": [block.attn.num_heads for block in blocks],
            "window_size": list(first.attn.window_size),
            "mlp_ratio": ratio(first.mlp[0].out_features, conv.out_channels),
            "drop_path_rate": stages[-1][-1].stochastic_depth.p,
        },
        weights=renamed(model.state_dict(), _swin_keys(len(stages)), "relative_position_index"),
        view={**IMAGENET, "interpolation": "bicubic", "crop_pct": 0.96},
    )


def _swin_keys(stages: int) -> KeyMap:
    parts = {"mlp.0.{*}": "mlp.fc1.{*}", "mlp.3.{*}": "mlp.fc2.{*}", "{*}": "{*}"}
    pairs = [("features.0.0.{*}", "patch_embed.proj.{*}"), ("features.0.2.{*}", "patch_embed.norm.{*}")]
    for stage in range(stages):
        merging = (f"features.{2 * stage}.{{*}}", f"layers.{stage}.downsample.{{*}}")
        block = f"features.{2 * stage + 1}.{{i}}"
        pairs += [merging] if stage else []
        pairs += [(f"{block}.{theirs}", f"layers.{stage}.blocks.{{i}}.{ours}") for theirs, ours in parts.items()]
    return KeyMap([*pairs, ("head.{*}", "head.fc.{*}")])
