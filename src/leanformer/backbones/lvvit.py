"""LV-ViT: a ViT with a convolutional stem, damped residual branches, and a label for every patch in training.

    x → stem → [cls | (dist) | N patches] + positions → D blocks → norm → head(cls) + ½ max_i aux_head(patch_i)
    block:  x + drop(attention(norm(x))) / λ,  then  x + drop(mlp(norm(x))) / λ        λ: skip_lam

LV-ViT+ models, which are teachers, have other stems and leave the aux head aside at inference. Nothing behind the stem
depends on the number of patch tokens, so methods may slim them.

B batch, N patches, H x W their plane, C channels, K classes.
"""

from functools import partial
from typing import Any, Literal

import torch
from timm.layers import Attention, DropPath, Mlp, resample_abs_pos_embed, trunc_normal_
from timm.models import checkpoint_seq
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ..core import Block, Branch, Grid
from ..layers.mix_token import Dense, draw_mix, mix_tokens
from ..layers.start import init_linear
from .generic import drop_path_rates
from .stems import Stem, StemName

Aux = Literal["max", "unused", "none"]


class Divide(nn.Module):
    """x / by."""

    def __init__(self, by: float):
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x / self.by

    def extra_repr(self) -> str:
        return f"by={self.by}"


class LVViT(nn.Module):
    """An LV-ViT of any dimensions, all arguments plain values.

    `aux`: "max" adds half of the largest patch logits at inference, "unused" leaves the head aside there and freezes
    its weights until token labels train them, "none" has no such head. With `distilled` a second token has a head of
    its own; the answer is their average. In training the answer is that of inference too, unless `return_dense` asks
    for `Dense` (class token and every patch apart) or `set_distilled_training` for the logits of both tokens;
    `mix_token` needs `return_dense`.

    >>> LVViT(img_size=32, embed_dim=32, depth=2, num_heads=2, num_classes=5)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 5])
    """

    head: nn.Module
    aux_head: nn.Module
    head_dist: nn.Module

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int = 384,
        depth: int = 16,
        num_heads: int = 6,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        skip_lam: float = 2.0,
        stem: StemName = "4_2",
        aux: Aux = "max",
        return_dense: bool = False,
        mix_token: bool = False,
        distilled: bool = False,
        dynamic_img_size: bool = False,
        norm_eps: float = 1e-5,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ):
        super().__init__()
        _check_heads(aux, return_dense, mix_token, embed_dim, num_heads)
        self.num_classes, self.in_chans, self.global_pool = num_classes, in_chans, "token"
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.aux, self.return_dense, self.mix_token, self.distilled = aux, return_dense, mix_token, distilled
        self.distilled_training = False
        self.num_prefix_tokens = 2 if distilled else 1
        self.grad_checkpointing = False

        self.patch_embed = Stem(stem, img_size, patch_size, in_chans, embed_dim, dynamic_img_size)
        self.grid = Grid(self.num_prefix_tokens, self.patch_embed.grid_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + self.patch_embed.num_patches, embed_dim))
        self.dist_token = nn.Parameter(torch.zeros(1, 1, embed_dim)) if distilled else None
        self.dist_pos_embed = nn.Parameter(torch.zeros(1, 1, embed_dim)) if distilled else None
        self.pos_drop = nn.Dropout(pos_drop_rate)
        rates = drop_path_rates(drop_path_rate, depth)
        block = partial(_block, embed_dim, num_heads, mlp_ratio, qkv_bias, skip_lam, norm_eps, self.grid)
        self.blocks = nn.Sequential(*(block(attn_drop_rate, proj_drop_rate, rate) for rate in rates))
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes)
        self._init_weights()

    def _init_weights(self) -> None:
        for token in (self.cls_token, self.pos_embed, self.dist_token, self.dist_pos_embed):
            if token is not None:
                trunc_normal_(token, std=0.02)
        self.apply(init_linear)

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images to all tokens with their positions (B, prefix + N, C), and the mask of the patches mixed if any."""
        x = self.patch_embed(x)  # (B, H, W, C)
        height, width = x.shape[1], x.shape[2]
        self.grid.see((height, width))
        mixed = None
        if self.mix_token and self.training:
            mixed = draw_mix(height, width, x.device)
            x = mix_tokens(x, mixed)
        positions = self.pos_embed
        if self.patch_embed.dynamic_img_size:
            positions = resample_abs_pos_embed(positions, [height, width], [*self.patch_embed.grid_size])
        first, patches = positions[:, :1], positions[:, 1:]
        prefix = [self.cls_token + first]
        if self.dist_token is not None and self.dist_pos_embed is not None:
            prefix.append(self.dist_token + self.dist_pos_embed)
        x = x.flatten(1, 2) + patches  # (B, N, C)
        x = torch.cat([*(token.expand(x.shape[0], -1, -1) for token in prefix), x], dim=1)
        return self.pos_drop(x), mixed

    def forward_tokens(self, x: Tensor) -> Tensor:
        """Blocks and final norm over embedded tokens (B, prefix + N, C)."""
        x = checkpoint_seq(self.blocks, x) if self.grad_checkpointing and self.training else self.blocks(x)
        return self.norm(x)

    def forward_features(self, x: Tensor) -> Tensor:
        """All tokens behind the final norm, (B, prefix + N, C)."""
        return self.forward_tokens(self.embed(x)[0])

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Any:
        """Tokens to the answer of inference, or to both tokens' logits for distillation in training."""
        if pre_logits or self.num_classes == 0:
            return self.head_drop(x[:, : self.num_prefix_tokens].mean(dim=1))  # (B, C)
        logits, distilled = self._class_logits(x)
        if distilled is not None:
            if self.training and self.distilled_training:
                return logits, distilled
            logits = (logits + distilled) / 2
        if self.aux == "max":
            logits = logits + 0.5 * self.aux_head(x[:, self.num_prefix_tokens :]).amax(dim=1)  # (B, K)
        return logits

    def forward(self, x: Tensor) -> Any:
        x, mixed = self.embed(x)
        x = self.forward_tokens(x)
        if self.return_dense and self.training and self.num_classes:
            if mixed is None:
                mixed = torch.zeros(self.grid.size, dtype=torch.bool, device=x.device)
            logits, distilled = self._class_logits(x)
            return Dense(logits, distilled, self.aux_head(x[:, self.num_prefix_tokens :]), mixed.flatten())
        return self.forward_head(x)

    def _class_logits(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = self.head(self.head_drop(x[:, 0]))  # (B, K)
        return logits, self.head_dist(self.head_drop(x[:, 1])) if self.distilled else None

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Final tokens and the patches behind the chosen blocks, as planes (NCHW) or as sequences (NLC)."""
        take, last = feature_take_indices(len(self.blocks), indices)
        x, _ = self.embed(x)
        taken = []
        for index, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            x = block(x)
            if index in take:
                taken.append(self.norm(x) if norm else x)
        patches = [self._patches(y, output_fmt) for y in taken]
        if return_prefix_tokens:
            patches = [(p, y[:, : self.num_prefix_tokens]) for p, y in zip(patches, taken)]
        return patches if intermediates_only else (self.norm(x), patches)

    def _patches(self, x: Tensor, output_fmt: str) -> Tensor:
        x = x[:, self.num_prefix_tokens :]
        if output_fmt == "NLC":
            return x
        height, width = self.grid.size
        if x.shape[1] != height * width:
            raise ValueError(
                f"{x.shape[1]} patch tokens are no plane of {height}x{width}, because a method slims them; "
                "ask for output_fmt='NLC'"
            )
        return x.transpose(1, 2).unflatten(2, (height, width)).contiguous()  # (B, C, H, W)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what the chosen blocks do not need, as timm's feature wrappers ask for; the indices kept."""
        take, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: last + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0)
        return take

    def get_classifier(self) -> Any:
        return (self.head, self.head_dist) if self.distilled else self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """New heads for another number of classes, on the device and in the dtype of the old."""
        if global_pool not in (None, "", "token"):
            raise ValueError(f"LV-ViT classifies by its class token, not by global_pool='{global_pool}'")
        self.num_classes = num_classes
        heads = ["head", *(["aux_head"] if self.aux != "none" else []), *(["head_dist"] if self.distilled else [])]
        for name in heads:
            head = nn.Linear(self.embed_dim, num_classes).to(self.cls_token) if num_classes else nn.Identity()
            setattr(self, name, head.train(self.training))
            init_linear(head)
        if self.aux == "unused":
            self.aux_head.requires_grad_(False)

    def set_distilled_training(self, enable: bool = True) -> None:
        """Whether training gives both heads' logits, as distillation needs them, or their average."""
        self.distilled_training = enable

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        return {"pos_embed", "cls_token", "dist_token", "dist_pos_embed"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return {
            "stem": r"^cls_token|pos_embed|patch_embed|dist_token|dist_pos_embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }


def _block(
    dim: int,
    num_heads: int,
    mlp_ratio: float,
    qkv_bias: bool,
    skip_lam: float,
    norm_eps: float,
    grid: Grid,
    attn_drop: float,
    proj_drop: float,
    drop_path: float,
) -> Block:
    attention = Attention(dim, num_heads, qkv_bias=qkv_bias, attn_drop=attn_drop, proj_drop=proj_drop)
    mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
    mix, ffn = (
        Branch(
            nn.LayerNorm(dim, eps=norm_eps),
            fn,
            scale=Divide(skip_lam) if skip_lam != 1 else None,
            drop=DropPath(drop_path) if drop_path else None,
            scale_last=True,
        )
        for fn in (attention, mlp)
    )
    return Block(mix=mix, ffn=ffn, dim=dim, grid=grid)


def _check_heads(aux: str, return_dense: bool, mix_token: bool, dim: int, num_heads: int) -> None:
    if aux not in ("max", "unused", "none"):
        raise ValueError(f"aux is '{aux}'; it can be 'max', 'unused' or 'none'")
    if return_dense and aux == "none":
        raise ValueError("return_dense needs the aux head, but aux is 'none'; use aux='max' or aux='unused'")
    if mix_token and not return_dense:
        raise ValueError("mix_token mixes the targets of all patches: it needs return_dense=True")
    if dim % num_heads:
        raise ValueError(f"embed_dim {dim} is not a multiple of num_heads {num_heads}")
