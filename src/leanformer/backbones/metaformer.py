"""MetaFormer: four stages of one block, whatever its token mixer, in the exact form of the official models.

    image → stem → [blocks] → downsample → [blocks] → … → head
    PoolFormer v1:   head = Linear(mean(norm(map)))            the norm sees the whole map
    the baselines:   head = Linear or MLP(norm(mean(map)))     PoolFormerV2, Identity-, Rand-, Conv-, CAFormer

v1 keeps maps as (B, C, H, W) and writes its MLP as 1x1 convolutions; the baselines keep (B, H, W, C) and linears.
B batch, H x W the map, C channels.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from timm.layers import DropPath, LayerScale, LayerScale2d, Mlp, to_2tuple, trunc_normal_
from timm.models import checkpoint_seq
from timm.models._features import feature_take_indices
from timm.models.metaformer import MlpHead, Scale
from torch import Tensor, nn

from ..core import Block, Branch
from ..layers.activations import activation
from ..layers.layout import from_plane, resample_map, to_plane
from ..layers.mixers import Pooling, make_mixer
from ..layers.norms import make_norm
from .batch_norm import BatchNormBranch
from .generic import drop_path_rates, with_config
from .metaformer_config import MODELS, Config
from .registry import register


class NoSkip(nn.Module):
    """A residual branch without its residual."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class Embed(nn.Module):
    """A convolution that makes patches, with a norm before or after it in the baselines; in and out in one layout."""

    def __init__(
        self, in_chans: int, dim: int, conv: Sequence[int], layout: str, pre_norm: nn.Module, post_norm: nn.Module
    ):
        super().__init__()
        self.layout = layout
        self.pre_norm = pre_norm
        self.conv = nn.Conv2d(in_chans, dim, kernel_size=conv[0], stride=conv[1], padding=conv[2])
        self.post_norm = post_norm

    def forward(self, x: Tensor) -> Tensor:
        plane, _ = to_plane(self.pre_norm(x), self.layout)
        return self.post_norm(from_plane(self.conv(plane), None, self.layout))


class Stage(nn.Module):
    """Downsampling, a position embedding where the official hybrid models have one, and blocks."""

    any_size = False

    def __init__(self, downsample: nn.Module, pos_embed: nn.Parameter | None, blocks: Sequence[Block], layout: str):
        super().__init__()
        self.layout = layout
        self.downsample = downsample
        self.pos_embed = pos_embed
        self.blocks = nn.Sequential(*blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.downsample(x)
        if self.pos_embed is not None:
            positions = self.pos_embed
            if self.any_size:
                positions = resample_map(positions, x, self.layout)
            elif x.shape[1:] != positions.shape[1:]:
                raise ValueError(
                    f"the position embedding was built for a map of {tuple(positions.shape[1:])} and one of "
                    f"{tuple(x.shape[1:])} came; build the model with the img_size it will see"
                )
            x = x + positions
        if self.grad_checkpointing and self.training:
            return checkpoint_seq(self.blocks, x)
        return self.blocks(x)


class MetaFormer(nn.Module):
    """Any model of the family, from a `Config`.

    >>> MetaFormer(Config(depths=(1, 1), dims=(8, 16), num_classes=5))(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 5])
    """

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.num_classes = config.num_classes
        self.num_features = self.head_hidden_size = config.dims[-1]
        self.img_size, self.in_chans = to_2tuple(config.img_size), config.in_chans
        self.layout, self.fork_feat, self.global_pool = config.layout, config.fork_feat, "avg"
        self.stem = _embed(config, 0)
        self.stages = nn.Sequential(*(_stage(config, s) for s in range(len(config.depths))))
        self.feature_info = [
            {"num_chs": dim, "reduction": config.reduction(s), "module": f"stages.{s}"}
            for s, dim in enumerate(config.dims)
        ]
        normed = range(len(config.dims)) if config.fork_feat else config.out_norms
        self.out_norms = nn.ModuleList(
            _norm(config, dim) if s in normed else nn.Identity() for s, dim in enumerate(config.dims)
        )
        if config.fork_feat:
            self.norm: nn.Module = nn.Identity()
        else:
            norm = partial(nn.LayerNorm, eps=config.norm_eps) if config.norm_after_pool else partial(_norm, config)
            self.norm = norm(config.dims[-1])
        self.head_drop = nn.Dropout(config.head_dropout if config.head == "linear" else 0.0)
        self.head = _head(config, config.num_classes)
        self.apply(partial(_init, config.init_convs))

    def forward_stages(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) → the last map, in the model's layout, before any norm."""
        return self.stages(self.stem(from_plane(x, None, self.layout)))

    def forward_features(self, x: Tensor) -> Tensor:
        """The last map (B, C, H, W), normalised where the norm comes before the pooling."""
        x = self.forward_stages(x)
        return to_plane(x if self.config.norm_after_pool else self.norm(x), self.layout)[0]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The last map (B, C, H, W) → logits, or the pooled features (B, C)."""
        x = x.mean(dim=(2, 3))  # (B, C)
        x = self.norm(x) if self.config.norm_after_pool else x
        return x if pre_logits else self.head(self.head_drop(x))

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        if self.fork_feat:
            return self.forward_intermediates(x, norm=True, intermediates_only=True)
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The maps after the chosen stages, and the last one as `forward_features` gives it.

        With `norm`, each stage's map passes the norm that the model has for it, if it has one.
        """
        if output_fmt != "NCHW":
            raise ValueError(f"output_fmt must be NCHW, not {output_fmt}")
        take, last = feature_take_indices(len(self.stages), indices)
        x = self.stem(from_plane(x, None, self.layout))
        maps = []
        for s, stage in enumerate(self.stages[: last + 1] if stop_early else self.stages):
            x = stage(x)
            if s in take:
                maps.append(to_plane(self._stage_norm(s)(x) if norm else x, self.layout)[0])
        if intermediates_only:
            return maps
        return to_plane(x if self.config.norm_after_pool else self.norm(x), self.layout)[0], maps

    def _stage_norm(self, s: int) -> nn.Module:
        if self.fork_feat or s < len(self.stages) - 1:
            return self.out_norms[s]
        return nn.Identity() if self.config.norm_after_pool else self.norm

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh head for another number of classes; 0 gives the pooled features."""
        if global_pool not in (None, "avg"):
            raise ValueError(f"MetaFormer pools with 'avg', not with '{global_pool}'")
        if self.fork_feat and num_classes:
            raise ValueError("a model with fork_feat gives maps and has no classifier")
        self.num_classes = num_classes
        reference = next(self.parameters())
        self.head = _head(self.config, num_classes).apply(partial(_init, True))
        self.head.to(device=reference.device, dtype=reference.dtype)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for stage in self.stages:
            stage.grad_checkpointing = enable  # type: ignore[assignment]

    def no_weight_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if name.endswith("pos_embed")}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameter groups for layer-wise learning rates, as timm's models give them."""
        fine = [(r"^stages\.(\d+)\.(?:downsample|pos_embed)", (0,)), (r"^stages\.(\d+)\.blocks\.(\d+)", None)]
        last = [(r"^norm", (99999,)), (r"^out_norms", (99999,))]
        return {"stem": r"^stem", "blocks": [(r"^stages\.(\d+)", None), *last] if coarse else [*fine, *last]}


def _norm(config: Config, dim: int) -> nn.Module:
    return make_norm(config.norm, dim, config.layout, config.norm_eps, config.norm_bias)


def _embed(config: Config, s: int) -> nn.Module:
    """The convolution before stage `s`: the stem before the first, a downsampling or nothing before the others."""
    if not config.has_downsample(s):
        return nn.Identity()
    before = config.in_chans if s == 0 else config.dims[s - 1]
    channel_norm = partial(make_norm, "layer" if config.embed_norm else "none", layout=config.layout, bias=False)
    pre = channel_norm(before, eps=config.norm_eps) if s else nn.Identity()
    post = nn.Identity() if s else channel_norm(config.dims[0], eps=config.norm_eps)
    return Embed(before, config.dims[s], config.down if s else config.stem, config.layout, pre, post)


def _stage(config: Config, s: int) -> Stage:
    first = sum(config.depths[:s])
    blocks = [_block(config, s, first + i) for i in range(config.depths[s])]
    height, width = config.plane(s)
    shape = (config.dims[s], height, width) if config.layout == "NCHW" else (height, width, config.dims[s])
    pos_embed = nn.Parameter(torch.zeros(1, *shape)) if config.pos_embed[s] else None
    return Stage(_embed(config, s) if s else nn.Identity(), pos_embed, blocks, config.layout)


def _block(config: Config, s: int, index: int) -> Block:
    """Block `index` of the whole depth, in stage `s`. In v1 one drop path serves both branches."""
    dim, first = config.dims[s], config.layout == "NCHW"
    rate = drop_path_rates(config.drop_path_rate, sum(config.depths))[index]
    drops = [DropPath(rate) if rate else nn.Identity() for _ in range(2)]
    mixer = make_mixer(
        config.token_mixers[s], dim, layout=config.layout, size=config.plane(s), pool_size=config.pool_size,
        kernel_size=config.kernel_size, head_dim=config.head_dim, qkv_bias=config.qkv_bias,
        proj_bias=config.proj_bias, act=config.mixer_act,
    )  # fmt: skip
    mlp = partial(
        Mlp, dim, int(dim * config.mlp_ratios[s]), act_layer=activation(config.act), bias=config.mlp_bias,
        drop=config.drop_rate, use_conv=first,
    )  # fmt: skip

    def branch(fn: nn.Module, drop: nn.Module) -> Branch:
        layer_scale, res_scale = config.layer_scale_init_values[s], config.res_scale_init_values[s]
        scale = (LayerScale2d if first else LayerScale)(dim, layer_scale) if layer_scale is not None else None
        skip = Scale(dim, res_scale, use_nchw=first) if res_scale is not None else nn.Identity()
        folds = config.norm == "batch" and isinstance(fn, Pooling | Mlp)
        skip = skip if config.residual else NoSkip()
        return (BatchNormBranch if folds else Branch)(_norm(config, dim), fn, scale, drop, skip, config.scale_last)

    mix = branch(mixer, drops[0])
    ffn = branch(mlp(), drops[0] if config.share_drop_path else drops[1]) if config.channel_mlp else None
    return Block(mix=mix, ffn=ffn, dim=dim, layout=config.layout, stage=s)


def _head(config: Config, num_classes: int) -> nn.Module:
    if not num_classes:
        return nn.Identity()
    if config.head == "linear":
        return nn.Linear(config.dims[-1], num_classes)
    return MlpHead(config.dims[-1], num_classes, drop_rate=config.head_dropout, norm_layer=nn.LayerNorm)


def _init(convs: bool, module: nn.Module) -> None:
    """Truncated normal for linears and 1x1 convolutions; for every convolution in the baselines."""
    if not isinstance(module, nn.Linear | nn.Conv2d):
        return
    if isinstance(module, nn.Linear) or convs or module.kernel_size == (1, 1):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


@register
def metaformer(crop_pct: float = 0.9, **arguments: Any) -> nn.Module:
    """A MetaFormer of any dimensions and mixers; the arguments are the fields of `Config`."""
    config = Config(**arguments)
    model = MetaFormer(config)
    names = {"first_conv": "stem.conv", "classifier": "head.fc2" if config.head == "mlp" else "head"}
    return with_config(model, vars(config), crop_pct=crop_pct, **names)


def _register(name: str, settings: dict[str, Any]) -> None:
    def entry(**arguments: Any) -> nn.Module:
        model = metaformer(**{**settings, **arguments})
        model.pretrained_cfg["architecture"] = name  # type: ignore[index]
        return model

    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = f"The official {name}; the arguments override the fields of `Config`."
    register(entry)


for _name, _settings in MODELS.items():
    _register(_name, _settings)
