"""Stems of the LV-ViT family: convolutions with batch norm that turn an image into a plane of patch embeddings.

    4_2      7x7/2, 3x3, 3x3 of 64 channels, ReLU after each, then a convolution of half a patch     (LV-ViT)
    4_2_128  the same with 128 channels                                                              (LV-ViT-L)
    4c       four 3x3/2 of C/8, C/4, C/2, C channels, GELU between them                              (LV-ViT+)
    6c       3x3/2, 3x3, 3x3 of C/8 channels, then three 3x3/2 of C/4, C/2, C, GELU between them     (LV-ViT+ L)
    naive    one convolution of a whole patch

B batch, C channels, H x W the plane of patches.
"""

import copy
import math
from typing import Literal, get_args

from timm.layers import to_2tuple
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

StemName = Literal["4_2", "4_2_128", "4c", "6c", "naive"]


def layers_of(stem: StemName, dim: int) -> list[tuple[int, int, int]]:
    """Kernel, stride and width of each convolution with batch norm.

    >>> layers_of("4c", 384)
    [(3, 2, 48), (3, 2, 96), (3, 2, 192), (3, 2, 384)]
    """
    return {
        "4_2": [(7, 2, 64), (3, 1, 64), (3, 1, 64)],
        "4_2_128": [(7, 2, 128), (3, 1, 128), (3, 1, 128)],
        "4c": [(3, 2, dim // 8), (3, 2, dim // 4), (3, 2, dim // 2), (3, 2, dim)],
        "6c": [(3, 2, dim // 8), *[(3, 1, dim // 8)] * 2, (3, 2, dim // 4), (3, 2, dim // 2), (3, 2, dim)],
        "naive": [],
    }[stem]


class Stem(nn.Module):
    """An image (B, 3, H·P, W·P) to its plane of patch embeddings (B, H, W, C), for patches of P pixels.

    >>> import torch
    >>> Stem("4c", img_size=64, embed_dim=32)(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 4, 4, 32])
    """

    def __init__(
        self,
        stem: StemName = "4_2",
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        embed_dim: int = 384,
        dynamic_img_size: bool = False,
    ):
        super().__init__()
        if stem not in get_args(StemName):
            raise ValueError(f"unknown stem '{stem}'; known stems: {', '.join(get_args(StemName))}")
        self.img_size: tuple[int, int] = to_2tuple(img_size)  # type: ignore[assignment]
        self.patch_size: tuple[int, int] = (patch_size, patch_size)
        self.dynamic_img_size = dynamic_img_size
        self.grid_size = self.feat_size(self.img_size)
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        layers = layers_of(stem, embed_dim)
        self.depth = len(layers)
        for k, (kernel, stride, width) in enumerate(layers, start=1):
            conv = nn.Conv2d(in_chans, width, kernel, stride, padding=kernel // 2, bias=False)
            self.add_module(f"conv{k}", conv)
            self.add_module(f"bn{k}", nn.BatchNorm2d(width))
            self.add_module(f"act{k}", nn.ReLU() if stem.startswith("4_2") else nn.GELU())
            in_chans = width
        self.proj = _projection(stem, patch_size, layers, in_chans, embed_dim)
        if self.proj is None:
            self.add_module(f"act{self.depth}", nn.Identity())

    def feat_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """The plane of patches of an image of that size."""
        size, patch = img_size, self.patch_size
        if size[0] % patch[0] or size[1] % patch[1]:
            raise ValueError(f"image size {size[0]}x{size[1]} is not a multiple of the patch size {patch[0]}")
        return size[0] // patch[0], size[1] // patch[1]

    def forward(self, x: Tensor) -> Tensor:
        size = (x.shape[2], x.shape[3])
        if self.dynamic_img_size:
            self.feat_size(size)
        elif size != self.img_size:
            built = f"{self.img_size[0]}x{self.img_size[1]}"
            raise ValueError(
                f"images of {size[0]}x{size[1]} for a model built for {built}; "
                f"create it with img_size={size} or with dynamic_img_size=True"
            )
        for k in range(1, self.depth + 1):
            for layer in ("conv", "bn", "act"):
                x = getattr(self, f"{layer}{k}")(x)
        x = x if self.proj is None else self.proj(x)  # (B, C, H, W)
        return x.permute(0, 2, 3, 1)

    def fused(self) -> nn.Module:
        """The same stem with every batch norm folded into its convolution."""
        new = copy.deepcopy(self).eval()
        for k in range(1, self.depth + 1):
            new.set_submodule(f"conv{k}", fuse_conv_bn_eval(getattr(new, f"conv{k}"), getattr(new, f"bn{k}")))
            new.set_submodule(f"bn{k}", nn.Identity())
        return new


def _projection(
    stem: StemName, patch_size: int, layers: list[tuple[int, int, int]], width: int, dim: int
) -> nn.Conv2d | None:
    stride = math.prod(stride for _, stride, _ in layers)
    if stem in ("4c", "6c"):
        if patch_size != stride:
            raise ValueError(f"the stem '{stem}' makes patches of {stride} pixels, not of {patch_size}")
        return None
    if patch_size % stride:
        raise ValueError(f"the stem '{stem}' makes patches of an even number of pixels, not of {patch_size}")
    return nn.Conv2d(width, dim, patch_size // stride, patch_size // stride)
