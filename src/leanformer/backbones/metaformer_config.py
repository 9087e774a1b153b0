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


DEPTHS = {
    "s12": (2, 2, 6, 2),
    "s24": (4, 4, 12, 4),
    "s36": (6, 6, 18, 6),
    "m36": (6, 6, 18, 6),
    "m48": (8, 8, 24, 8),
}
SMALL, MEDIUM = (64, 128, 320, 512), (96, 192, 384, 768)
DIMS = {"s12": SMALL, "s24": SMALL, "s36": SMALL, "m36": MEDIUM, "m48": MEDIUM}
DROP_PATH = {"s12": 0.1, "s24": 0.1, "s36": 0.2, "m36": 0.3, "m48": 0.4}

POOL_CROP = {"s12": 0.9, "s24": 0.9, "s36": 0.9, "m36": 0.95, "m48": 0.95}
LAYER_SCALE = {"s12": 1e-5, "s24": 1e-5, "s36": 1e-6, "m36": 1e-6, "m48": 1e-6}

POOLFORMER = {
    f"poolformer_{size}": {
        "depths": depths,
        "dims": DIMS[size],
        "layer_scale_init_values": LAYER_SCALE[size],
        "crop_pct": POOL_CROP[size],
    }
    for size, depths in DEPTHS.items()
}

MODELS: dict[str, dict[str, Any]] = {**POOLFORMER}
"""Name of a model → its arguments of `metaformer`. Drop path rates are the recipes' matter: DROP_PATH."""
