"""The backbones of the published RePaFormers, where they are not those that they are named after.

RePa-ViT has a LayerNorm behind its position embedding, a patch embedding without bias, and block norms of another
eps. RePa-MLP-Mixer normalises over the tokens, not over the channels, before it mixes them:

    x + W₂ gelu(W₁ norm(xᵀ))ᵀ          norm over N

`lf.RePa` itself is put on by `lf.apply`, as on any backbone. B batch, N tokens, C channels.
"""

from typing import Any

from timm.layers import DropPath, Mlp
from timm.models.mlp_mixer import MlpMixer
from torch import nn

from ...backbones.generic import vit, with_config
from ...backbones.registry import register, register_named
from ...core import Block, Branch, Grid
from ...layers.layout import AcrossTokens

VITS = {
    "tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "small": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
    "huge": {"embed_dim": 1280, "depth": 32, "num_heads": 16},
}
SWINS = {
    "tiny": {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)},
    "small": {"embed_dim": 96, "depths": (2, 2, 18, 2), "num_heads": (3, 6, 12, 24)},
    "base": {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)},
}
POOL_SIZE = 7
"""Of the published RePa-PoolFormers S12, S24 and S36; PoolFormer's own is 3."""
MIXERS = {
    f"{letter}{patch}": {"patch_size": patch, "embed_dim": dim, "num_blocks": blocks}
    for letter, dim, blocks in (("s", 512, 8), ("b", 768, 12), ("l", 1024, 24))
    for patch in (16, 32)
}

VANILLA: dict[str, tuple[str, dict[str, Any]]] = {
    "DeiT-Tiny": ("deit_tiny_patch16_224", {}), "DeiT-Small": ("deit_small_patch16_224", {}),
    "DeiT-Base": ("deit_base_patch16_224", {}), "ViT-Large": ("vit_large_patch16_224", {}),
    "ViT-Huge": ("vit", VITS["huge"]),
    "Swin-Tiny": ("swin_tiny_patch4_window7_224", {}), "Swin-Small": ("swin_small_patch4_window7_224", {}),
    "Swin-Base": ("swin_base_patch4_window7_224", {}), "LV-ViT-S": ("lvvit_s", {}), "LV-ViT-M": ("lvvit_m", {}),
    "PoolFormer-s12": ("poolformer_s12", {}), "PoolFormer-s24": ("poolformer_s24", {}),
    "PoolFormer-s36": ("poolformer_s36", {}), "MLPMixer-b16": ("mixer_b16_224", {}),
    "MLPMixer-l16": ("mixer_l16_224", {}),
}  # fmt: skip
"""A model of the paper → its backbone and arguments, as those who published the backbone have it."""
BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    title: (name, {"pool_size": POOL_SIZE}) if name.startswith("poolformer") else (name, arguments)
    for title, (name, arguments) in VANILLA.items()
} | {
    "DeiT-Tiny": ("repavit_tiny", {}), "DeiT-Small": ("repavit_small", {}), "DeiT-Base": ("repavit_base", {}),
    "ViT-Large": ("repavit_large", {}), "ViT-Huge": ("repavit_huge", {}),
    "MLPMixer-b16": ("repamixer_b16", {}), "MLPMixer-l16": ("repamixer_l16", {}),
}  # fmt: skip
"""The same for the backbones under the RePaFormers: the published code changes ViT, PoolFormer and MLP-Mixer."""


def idle_ratio_of(title: str) -> float:
    """The idle ratio of a published RePaFormer: an LV-ViT's FFN is three times as wide as the model, the others' four.

    >>> idle_ratio_of("DeiT-Base")
    0.75
    """
    return 1 - 1 / 3 if title.startswith("LV-ViT") else 0.75


class TokenNormMixer(MlpMixer):
    """MLP-Mixer whose token mixers normalise each channel over the tokens.

    >>> import torch
    >>> TokenNormMixer(img_size=32, patch_size=8, num_blocks=1, embed_dim=16)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """

    def __init__(self, num_blocks: int = 8, drop_path_rate: float = 0.0, **arguments: Any):
        super().__init__(num_blocks=0, **arguments)
        tokens, dim = self.stem.num_patches, self.embed_dim
        grid = Grid(0, tuple(self.stem.grid_size))  # type: ignore[arg-type]
        blocks = [_mixer_block(dim, tokens, drop_path_rate, grid) for _ in range(num_blocks)]
        self.blocks = nn.Sequential(*blocks)


def _mixer_block(dim: int, tokens: int, drop_path: float, grid: Grid) -> Block:
    drops = [DropPath(drop_path) if drop_path else nn.Identity() for _ in range(2)]
    mix = Branch(AcrossTokens(nn.LayerNorm(tokens)), AcrossTokens(Mlp(tokens, dim // 2)), drop=drops[0])
    return Block(mix=mix, ffn=Branch(nn.LayerNorm(dim), Mlp(dim, 4 * dim), drop=drops[1]), dim=dim, grid=grid)


@register
def repavit(**arguments: Any) -> nn.Module:
    """The ViT under the published RePa-ViTs, in any dimensions."""
    return vit(**{"pre_norm": True, "block_norm_eps": 1e-5, "fc_norm": False, **arguments})


@register
def repamixer(**arguments: Any) -> nn.Module:
    """The MLP-Mixer under the published RePa-MLP-Mixers, in any dimensions."""
    return with_config(TokenNormMixer(**arguments), arguments)


register_named(repavit, {f"repavit_{size}": settings for size, settings in VITS.items()})
register_named(repamixer, {f"repamixer_{size}": settings for size, settings in MIXERS.items()})
