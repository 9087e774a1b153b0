"""GFNet: tokens are mixed by a learned filter as large as the plane, applied in the frequency domain.

    x → patches + positions → blocks, in H models with 2x2 convolutions between four stages → norm → mean → head
    block:  x + drop(γ · mlp(norm(F⁻¹(K ∘ F(norm(x))))))        F the 2-D Fourier transform, K the filter

One residual goes around filter and MLP together. A block's slots hand on a single tensor, and after the filter both
its output and x are still needed; so the whole branch is the `mix` slot, and there is no `ffn` slot, as in gMLP.
A filter has the size of its plane: the model takes images of the size it was built for.

B batch, H x W the plane of patches, C channels, K classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import DropPath, LayerScale, Mlp, trunc_normal_
from timm.models import checkpoint_seq
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ..core import Block, Branch
from ..layers.layout import resample_map
from ..layers.mixers import GlobalFilter
from ..layers.start import init_linear
from .generic import drop_path_rates, with_config
from .registry import register, register_named
from .stems import Stem


class FilterMlp(nn.Module):
    """mlp(norm(filter(x))) over (B, H, W, C).

    >>> FilterMlp(8, (4, 4), 4.0)(torch.zeros(1, 4, 4, 8)).shape
    torch.Size([1, 4, 4, 8])
    """

    needs_grid = True

    def __init__(self, dim: int, size: tuple[int, int], mlp_ratio: float, drop: float = 0.0):
        super().__init__()
        self.filter = GlobalFilter(dim, size, layout="NHWC")
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm(self.filter(x)))


class Stage(nn.Module):
    """Blocks of one resolution, behind the 2x2 convolution that leads to it in all stages but the first."""

    def __init__(self, downsample: nn.Module, blocks: list[Block]):
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.Sequential(*blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.downsample(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # (B, H, W, C)
        return checkpoint_seq(self.blocks, x) if self.grad_checkpointing and self.training else self.blocks(x)


class GFNet(nn.Module):
    """A GFNet of any dimensions: one width and depth, or lists of them for stages of half the resolution each.

    >>> GFNet(img_size=32, patch_size=8, embed_dim=16, depth=2, num_classes=5)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 5])
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int | Sequence[int] = 384,
        depth: int | Sequence[int] = 12,
        mlp_ratio: float | Sequence[float] = 4.0,
        layer_scale: float | None = None,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ):
        super().__init__()
        dims, depths, ratios = _stages(embed_dim, depth, mlp_ratio)
        self.num_classes, self.in_chans, self.global_pool = num_classes, in_chans, "avg"
        self.num_features = self.head_hidden_size = self.embed_dim = dims[-1]
        self.num_prefix_tokens = 0
        self.patch_embed = Stem("naive", img_size, patch_size, in_chans, dims[0])
        self.pos_embed = nn.Parameter(trunc_normal_(torch.zeros(1, self.patch_embed.num_patches, dims[0]), std=0.02))
        self.pos_drop = nn.Dropout(proj_drop_rate)
        rates = iter(drop_path_rates(drop_path_rate, sum(depths)))
        size = self.patch_embed.grid_size
        stages = []
        for s, (dim, depth, ratio) in enumerate(zip(dims, depths, ratios)):
            size = _halved(size, s) if s else size
            down = nn.Conv2d(dims[s - 1], dim, 2, 2) if s else nn.Identity()
            place = (dim, size, ratio, layer_scale, proj_drop_rate)
            blocks = [_block(*place, drop_path=next(rates), stage=s) for _ in range(depth)]
            stages.append(Stage(down, blocks))
        self.stages = nn.Sequential(*stages)
        self.feature_info = [
            {"num_chs": dim, "reduction": patch_size * 2**s, "module": f"stages.{s}"} for s, dim in enumerate(dims)
        ]
        self.norm = nn.LayerNorm(self.embed_dim, eps=1e-6)
        self.head_drop = nn.Dropout(drop_rate)
        self.head: nn.Module = nn.Identity()
        self.apply(init_linear)
        self.reset_classifier(num_classes)

    def embed(self, x: Tensor) -> Tensor:
        """Images to patches with their positions, (B, H, W, C)."""
        x = self.patch_embed(x)  # (B, H, W, C)
        positions = self.pos_embed.unflatten(1, self.patch_embed.grid_size)  # (1, H, W, C)
        if self.patch_embed.dynamic_img_size:
            positions = resample_map(positions, x, "NHWC")
        return self.pos_drop(x + positions)

    def forward_features(self, x: Tensor) -> Tensor:
        """The last stage's patches behind the final norm, (B, H, W, C)."""
        return self.norm(self.stages(self.embed(x)))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(x.mean(dim=(1, 2)))  # (B, C)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
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
        """Final patches and those behind the chosen stages, or behind the chosen blocks where there is one stage."""
        if output_fmt not in ("NCHW", "NHWC"):
            raise ValueError(f"output_fmt is '{output_fmt}'; GFNet gives 'NCHW' or 'NHWC'")
        steps = self.stages if len(self.stages) > 1 else self.stages[0].blocks
        take, last = feature_take_indices(len(steps), indices)  # type: ignore[arg-type]
        x = self.embed(x)
        taken = []
        for index, step in enumerate(steps):  # type: ignore[arg-type]
            if stop_early and index > last:
                break
            x = step(x)
            if index in take:
                y = self.norm(x) if norm and x.shape[-1] == self.embed_dim else x
                taken.append(y.permute(0, 3, 1, 2).contiguous() if output_fmt == "NCHW" else y)
        return taken if intermediates_only else (self.norm(x), taken)

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head for another number of classes, on the device and in the dtype of the old."""
        if global_pool not in (None, "avg"):
            raise ValueError(f"GFNet classifies by the mean of its patches, not by global_pool='{global_pool}'")
        self.num_classes = num_classes
        self.head = nn.Linear(self.embed_dim, num_classes).to(self.pos_embed) if num_classes else nn.Identity()
        init_linear(self.head.train(self.training))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for stage in self.stages:
            stage.grad_checkpointing = enable  # type: ignore[assignment]

    def no_weight_decay(self) -> set[str]:
        return {"pos_embed"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        fine = [(r"^stages\.(\d+)\.downsample", (0,)), (r"^stages\.(\d+)\.blocks\.(\d+)", None)]
        blocks = [(r"^stages\.(\d+)", None)] if coarse else fine
        return {"stem": r"^pos_embed|patch_embed", "blocks": [*blocks, (r"^norm", (99999,))]}


def _block(
    dim: int,
    size: tuple[int, int],
    mlp_ratio: float,
    layer_scale: float | None,
    drop: float,
    drop_path: float,
    stage: int,
) -> Block:
    mix = Branch(
        nn.LayerNorm(dim, eps=1e-6),
        FilterMlp(dim, size, mlp_ratio, drop),
        scale=LayerScale(dim, layer_scale) if layer_scale is not None else None,
        drop=DropPath(drop_path) if drop_path else None,
    )
    return Block(mix=mix, ffn=None, dim=dim, layout="NHWC", stage=stage)


def _stages(embed_dim: Any, depth: Any, mlp_ratio: Any) -> tuple[list[int], list[int], Sequence[float]]:
    dims = [embed_dim] if isinstance(embed_dim, int) else list(embed_dim)
    depths = [depth] if isinstance(depth, int) else list(depth)
    ratios = [mlp_ratio] * len(dims) if isinstance(mlp_ratio, int | float) else list(mlp_ratio)
    if not len(dims) == len(depths) == len(ratios):
        raise ValueError(f"{len(dims)} widths, {len(depths)} depths and {len(ratios)} MLP ratios: give one per stage")
    return dims, depths, ratios


def _halved(size: tuple[int, int], stage: int) -> tuple[int, int]:
    if size[0] % 2 or size[1] % 2:
        raise ValueError(
            f"the plane {size[0]}x{size[1]} before stage {stage} cannot be halved; choose another img_size"
        )
    return size[0] // 2, size[1] // 2


@register
def gfnet(**arguments: Any) -> nn.Module:
    """A GFNet of any dimensions."""
    return with_config(GFNet(**arguments), arguments)


_H = {"patch_size": 4, "embed_dim": [64, 128, 256, 512], "depth": [3, 3, 10, 3], "layer_scale": 1e-3}
_HS = {**_H, "embed_dim": [96, 192, 384, 768]}

CONFIGS: dict[str, dict[str, Any]] = {
    "gfnet_ti": {"embed_dim": 256, "depth": 12},
    "gfnet_xs": {"embed_dim": 384, "depth": 12},
    "gfnet_s": {"embed_dim": 384, "depth": 19, "drop_path_rate": 0.15},
    "gfnet_b": {"embed_dim": 512, "depth": 19, "drop_path_rate": 0.25},
    "gfnet_h_ti": {**_H, "drop_path_rate": 0.1},
    "gfnet_h_s": {**_HS, "layer_scale": 1e-5, "drop_path_rate": 0.2},
    "gfnet_h_b": {**_HS, "layer_scale": 1e-6, "depth": [3, 3, 27, 3], "drop_path_rate": 0.4},
}

register_named(gfnet, CONFIGS)
