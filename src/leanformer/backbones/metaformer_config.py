"""One table of configurations for the whole MetaFormer family: every model, and every row of PoolFormer's ablation.

A model is a `Config`; its fields are plain values, so that a card can name it. Lists of one value a stage may be given
as a single value.
"""

import dataclasses
from typing import Any, Literal

from timm.layers import to_2tuple

from ..layers.mixers import MIXERS

PER_STAGE = ("token_mixers", "mlp_ratios", "layer_scale_init_values", "res_scale_init_values", "pos_embed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that makes one MetaFormer; the defaults are those of PoolFormer v1.

    >>> Config(token_mixers="identity").token_mixers
    ('identity', 'identity', 'identity', 'identity')
    """

    depths: tuple[int, ...] = (2, 2, 6, 2)
    dims: tuple[int, ...] = (64, 128, 320, 512)
    token_mixers: Any = "pooling"
    """The mixer of each stage, by name."""
    mlp_ratios: Any = 4.0
    layer_scale_init_values: Any = 1e-5
    """What LayerScale starts from, in each stage; None has none."""
    res_scale_init_values: Any = None
    """What the scale on the residual path starts from, in each stage; None has none."""
    pos_embed: Any = False
    """Whether a learned position embedding is added before each stage's blocks; it fixes the input size."""

    layout: Literal["NCHW", "NHWC"] = "NCHW"
    norm: str = "modified"
    norm_bias: bool = True
    norm_eps: float = 1e-5
    act: str = "gelu"
    mlp_bias: bool = True
    residual: bool = True
    channel_mlp: bool = True
    scale_last: bool = False
    share_drop_path: bool = True

    pool_size: int = 3
    kernel_size: int | None = None
    """Of depthwise (3 by default) and separable (7) convolutions."""
    mixer_act: str | None = None
    head_dim: int = 32
    qkv_bias: bool = False
    proj_bias: bool = True

    stem: tuple[int, int, int] = (7, 4, 2)
    """Kernel, stride and padding."""
    down: tuple[int, int, int] = (3, 2, 1)
    downsamples: Any = True
    """Whether there is a downsampling after each stage; where the width changes there always is one."""
    embed_norm: bool = False
    """A channel norm after the stem and before each downsampling."""
    norm_after_pool: bool = False
    head: str = "linear"
    head_dropout: float = 0.0
    fork_feat: bool = False
    """The form for dense prediction: the four maps, each through a norm of its own, and no head."""
    out_norms: tuple[int, ...] = ()
    """Stages before the last whose maps have a norm of their own beside the head, for `forward_intermediates`."""

    img_size: Any = 224
    in_chans: int = 3
    num_classes: int = 1000
    drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    init_convs: bool = False
    """Draw every convolution from the truncated normal, as the baselines do, not only the 1x1 ones."""

    def __post_init__(self) -> None:
        stages = len(self.depths)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in (*PER_STAGE, "downsamples") and not isinstance(value, list | tuple):
                value = (value,) * stages
            object.__setattr__(self, field.name, tuple(value) if isinstance(value, list) else value)
        if self.fork_feat:
            object.__setattr__(self, "num_classes", 0)
        self._check(stages)

    def _check(self, stages: int) -> None:
        for name in ("dims", *PER_STAGE):
            found = getattr(self, name)
            if len(found) != stages:
                raise ValueError(f"depths has {stages} stages but {name} has {len(found)}: {found}")
        for name in self.token_mixers:
            if name not in MIXERS:
                raise ValueError(f"unknown token mixer '{name}'; known: {', '.join(MIXERS)}")
        if any(s not in range(stages - 1) for s in self.out_norms):
            raise ValueError(f"out_norms are stages 0 to {stages - 2}, whose maps no head reads, not {self.out_norms}")
        if self.layout not in ("NCHW", "NHWC"):
            raise ValueError(f"layout must be NCHW or NHWC, not {self.layout}")
        if self.head not in ("linear", "mlp"):
            raise ValueError(f"head must be linear or mlp, not {self.head}")

    def has_downsample(self, s: int) -> bool:
        """Whether a convolution stands before stage `s`; the stem stands before the first."""
        return s == 0 or bool(self.downsamples[s - 1]) or self.dims[s - 1] != self.dims[s]

    def plane(self, s: int) -> tuple[int, int]:
        """The size (H, W) of the maps of stage `s`."""
        height, width = (self._after_convs(int(size), s) for size in to_2tuple(self.img_size))
        return height, width

    def reduction(self, s: int) -> int:
        """How many pixels a step on the map of stage `s` is."""
        stride = 1
        for conv in self._convs(s):
            stride *= conv[1]
        return stride

    def _after_convs(self, size: int, s: int) -> int:
        for kernel, stride, padding in self._convs(s):
            size = (size + 2 * padding - kernel) // stride + 1
        return size

    def _convs(self, s: int) -> list[tuple[int, int, int]]:
        return [self.down if i else self.stem for i in range(s + 1) if self.has_downsample(i)]


SIZES = {
    "s12": ((2, 2, 6, 2), (64, 128, 320, 512)),
    "s24": ((4, 4, 12, 4), (64, 128, 320, 512)),
    "s36": ((6, 6, 18, 6), (64, 128, 320, 512)),
    "m36": ((6, 6, 18, 6), (96, 192, 384, 768)),
    "m48": ((8, 8, 24, 8), (96, 192, 384, 768)),
}
"""Depths and widths of PoolFormer v1, PoolFormerV2, IdentityFormer and RandFormer."""
CONV_SIZES = {
    "s18": ((3, 3, 9, 3), (64, 128, 320, 512)),
    "s36": ((3, 12, 18, 3), (64, 128, 320, 512)),
    "m36": ((3, 12, 18, 3), (96, 192, 384, 576)),
    "b36": ((3, 12, 18, 3), (128, 256, 512, 768)),
}
"""Depths and widths of ConvFormer and CAFormer."""

BASELINE: dict[str, Any] = {
    "layout": "NHWC", "norm_bias": False, "norm_eps": 1e-6, "act": "star_relu", "mlp_bias": False, "proj_bias": False,
    "layer_scale_init_values": None, "res_scale_init_values": (None, None, 1.0, 1.0), "scale_last": True,
    "share_drop_path": False, "embed_norm": True, "norm_after_pool": True, "init_convs": True, "crop_pct": 1.0,
}  # fmt: skip
"""What PoolFormerV2, IdentityFormer, RandFormer, ConvFormer and CAFormer share."""
FAMILIES: dict[str, dict[str, Any]] = {
    "poolformer": {},
    "identityformer": {**BASELINE, "token_mixers": "identity"},
    "randformer": {**BASELINE, "token_mixers": ("identity", "identity", "random", "random")},
    "poolformerv2": {**BASELINE, "token_mixers": "pooling"},
    "convformer": {**BASELINE, "token_mixers": "separable", "norm": "layer", "head": "mlp"},
    "caformer": {
        **BASELINE, "token_mixers": ("separable", "separable", "attention", "attention"), "norm": "layer", "head": "mlp"
    },
    "metaformer_id": {"token_mixers": "identity"},
    "metaformer_pppa": {
        "token_mixers": ("pooling", "pooling", "pooling", "attention"), "norm": "layer",
        "pos_embed": (False, False, False, True), "crop_pct": 0.95,
    },
    "metaformer_ppaa": {
        "token_mixers": ("pooling", "pooling", "attention", "attention"), "norm": "layer",
        "pos_embed": (False, False, True, False), "crop_pct": 0.95,
    },
    "metaformer_pppf": {"token_mixers": ("pooling", "pooling", "pooling", "spatial_fc")},
    "metaformer_ppff": {"token_mixers": ("pooling", "pooling", "spatial_fc", "spatial_fc"), "crop_pct": 0.95},
}  # fmt: skip
"""What the models of a family share, as differences from the defaults of `Config`."""


def _sized(family: str, sizes: dict[str, Any], size: str, **settings: Any) -> dict[str, Any]:
    depths, dims = sizes[size]
    return {"depths": depths, "dims": dims, **FAMILIES[family], **settings}


def _poolformers() -> dict[str, dict[str, Any]]:
    small = {"layer_scale_init_values": 1e-5, "crop_pct": 0.9}
    deep = {"layer_scale_init_values": 1e-6, "crop_pct": 0.9}
    wide = {"layer_scale_init_values": 1e-6, "crop_pct": 0.95}
    settings = {"s12": small, "s24": small, "s36": deep, "m36": wide, "m48": wide}
    return {f"poolformer_{size}": _sized("poolformer", SIZES, size, **settings[size]) for size in SIZES}


def _hybrids() -> dict[str, dict[str, Any]]:
    names = {"metaformer_id": "metaformer_id_s12"}
    families = [family for family in FAMILIES if family.startswith("metaformer_")]
    return {names.get(family, f"{family}_s12_224"): _sized(family, SIZES, "s12") for family in families}


def _baselines() -> dict[str, dict[str, Any]]:
    simple = ("identityformer", "randformer", "poolformerv2")
    models = {f"{family}_{size}": _sized(family, SIZES, size) for family in simple for size in SIZES}
    heads = {
        "": {}, "_384": {"img_size": 384}, "_in21ft1k": {}, "_384_in21ft1k": {"img_size": 384},
        "_in21k": {"num_classes": 21841},
    }  # fmt: skip
    for family in ("convformer", "caformer"):
        for size in CONV_SIZES:
            for suffix, head in heads.items():
                models[f"{family}_{size}{suffix}"] = _sized(family, CONV_SIZES, size, **head)
    return models


OFFICIAL: dict[str, dict[str, Any]] = {**_poolformers(), **_hybrids(), **_baselines()}
"""Name of a released model → its arguments of `metaformer`."""

ABLATIONS: dict[str, dict[str, Any]] = {
    f"poolformer_s12_{row}": _sized("poolformer", SIZES, "s12", **changes)
    for row, changes in {
        "random": {"token_mixers": "random"},
        "depthwise": {"token_mixers": "depthwise"},
        "pool5": {"pool_size": 5},
        "pool7": {"pool_size": 7},
        "pool9": {"pool_size": 9},
        "layernorm": {"norm": "layer"},
        "batchnorm": {"norm": "batch"},
        "nonorm": {"norm": "none"},
        "relu": {"act": "relu"},
        "silu": {"act": "silu"},
        "starrelu": {"act": "star_relu"},
        "noresidual": {"residual": False},
        "nomlp": {"channel_mlp": False},
    }.items()
}
"""The rows of PoolFormer's ablation that have no official name of their own; the others are the hybrid models."""

MODELS: dict[str, dict[str, Any]] = {**OFFICIAL, **ABLATIONS}
"""Name of a model → its arguments of `metaformer`. Drop path rates belong to the training recipes."""
