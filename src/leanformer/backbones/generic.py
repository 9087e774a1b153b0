"""timm's architectures with every dimension free, under names of their own.

timm's entry points fix some dimensions (a Mixer's width and depth, a PoolFormer's stages), so a model of other
dimensions could not be named on a card. These take the class's arguments as they are, all of them plain values.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import GatedMlp, get_act_layer, to_2tuple
from timm.models import metaformer, mlp_mixer, swin_transformer, vision_transformer
from torch import nn

from .registry import register


def with_config(model: nn.Module, arguments: Mapping[str, Any], **config: Any) -> nn.Module:
    """Give a model that was made with these arguments the input description that timm's data pipeline reads."""
    model.pretrained_cfg = model.default_cfg = {  # type: ignore[assignment]
        "input_size": (arguments.get("in_chans", 3), *to_2tuple(arguments.get("img_size", 224))),
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        **config,
    }
    return model


def drop_path_rates(most: float, depth: int) -> list[float]:
    """The rate of each block: from 0, linearly over the depth, to the most.

    >>> drop_path_rates(0.2, 3)
    [0.0, 0.1, 0.2]
    """
    return [most * i / max(1, depth - 1) for i in range(depth)]


@register
def vit(norm_eps: float = 1e-6, block_norm_eps: float | None = None, **arguments: Any) -> nn.Module:
    """A VisionTransformer of any dimensions; `norm_eps` is that of every LayerNorm, unless the blocks' own is given."""
    norm = partial(nn.LayerNorm, eps=norm_eps)
    model = vision_transformer.VisionTransformer(norm_layer=norm, **arguments)
    for module in model.blocks.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = norm_eps if block_norm_eps is None else block_norm_eps
    return with_config(model, arguments)


@register
def swin(**arguments: Any) -> nn.Module:
    """A SwinTransformer of any dimensions."""
    return with_config(swin_transformer.SwinTransformer(**arguments), arguments)


@register
def mixer(**arguments: Any) -> nn.Module:
    """An MLP-Mixer of any dimensions."""
    return with_config(mlp_mixer.MlpMixer(**arguments), arguments)


@register
def resmlp(init_values: float = 1e-4, **arguments: Any) -> nn.Module:
    """A ResMLP of any dimensions."""
    block: Any = partial(mlp_mixer.ResBlock, init_values=init_values)
    arguments = {"mlp_ratio": 4, "norm_layer": mlp_mixer.Affine, **arguments}
    return with_config(mlp_mixer.MlpMixer(block_layer=block, **arguments), arguments)


@register
def gmlp(**arguments: Any) -> nn.Module:
    """A gMLP of any dimensions."""
    arguments = {"mlp_ratio": 6, "mlp_layer": GatedMlp, **arguments}
    return with_config(mlp_mixer.MlpMixer(block_layer=mlp_mixer.SpatialGatingBlock, **arguments), arguments)


_MIXERS = {
    "pooling": (metaformer.Pooling, metaformer.GroupNorm1NoBias),
    "sepconv": (metaformer.SepConv, metaformer.LayerNorm2dNoBias),
    "attention": (metaformer.Attention, metaformer.LayerNormNoBias),
}


@register
def timm_metaformer(
    token_mixers: Sequence[str] = ("sepconv", "sepconv", "attention", "attention"),
    mlp_act: str = "star_relu",
    **arguments: Any,
) -> nn.Module:
    """timm's MetaFormer of any dimensions, with a token mixer for each stage: pooling, sepconv or attention."""
    unknown = [name for name in token_mixers if name not in _MIXERS]
    if unknown:
        raise ValueError(f"unknown token mixer '{unknown[0]}'; known: {', '.join(_MIXERS)}")
    mixers, norms = zip(*(_MIXERS[name] for name in token_mixers), strict=True)
    act: Any = metaformer.StarReLU if mlp_act == "star_relu" else get_act_layer(mlp_act)
    own = {key: value for key, value in arguments.items() if key != "img_size"}  # convolutional: any size
    model = metaformer.MetaFormer(token_mixers=list(mixers), norm_layers=list(norms), mlp_act=act, **own)
    return with_config(model, arguments)
