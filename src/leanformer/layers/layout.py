"""Where tokens lie in a tensor: the three layouts of backbones, and the ways between them.

    NLC  (B, P + H*W, C)     P prefix tokens, then the patches row by row
    NHWC (B, H, W, C)        NCHW (B, C, H, W)

B batch, N tokens, P prefix tokens, H x W the plane of patches, C channels.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Plane(Protocol):
    """What a layout must know of the place of tokens in a sequence."""

    prefix: int

    def plane(self, patches: int) -> tuple[int, int]: ...


def to_plane(x: Tensor, layout: str, grid: Plane | None = None) -> tuple[Tensor, Tensor | None]:
    """The patches as a map (B, C, H, W), and the prefix tokens (B, P, C) where there are any.

    >>> to_plane(torch.zeros(2, 4, 6, 8), "NHWC")[0].shape
    torch.Size([2, 8, 4, 6])
    """
    if layout == "NCHW":
        return x, None
    if layout == "NHWC":
        return x.permute(0, 3, 1, 2), None
    assert grid is not None, "a sequence of tokens needs a grid"
    prefix = grid.prefix
    height, width = grid.plane(x.shape[1] - prefix)
    patches = x[:, prefix:].transpose(1, 2).unflatten(2, (height, width))  # (B, C, H, W)
    return patches, x[:, :prefix] if prefix else None


def from_plane(plane: Tensor, prefix: Tensor | None, layout: str) -> Tensor:
    """The way back: a map (B, C, H, W) and prefix tokens in the given layout.

    >>> from_plane(torch.zeros(2, 8, 4, 6), None, "NLC").shape
    torch.Size([2, 24, 8])
    """
    if layout == "NCHW":
        return plane
    if layout == "NHWC":
        return plane.permute(0, 2, 3, 1)
    tokens = plane.flatten(2).transpose(1, 2)  # (B, H*W, C)
    return tokens if prefix is None else torch.cat([prefix, tokens], dim=1)


def to_tokens(x: Tensor, layout: str) -> Tensor:
    """All tokens as a sequence (B, N, C).

    >>> to_tokens(torch.zeros(2, 8, 4, 6), "NCHW").shape
    torch.Size([2, 24, 8])
    """
    if layout == "NLC":
        return x
    return x.flatten(1, 2) if layout == "NHWC" else x.flatten(2).transpose(1, 2)


def from_tokens(tokens: Tensor, layout: str, like: Tensor) -> Tensor:
    """The way back: a sequence (B, N, C) in the layout and shape of `like`.

    >>> from_tokens(torch.zeros(2, 24, 8), "NCHW", torch.zeros(2, 8, 4, 6)).shape
    torch.Size([2, 8, 4, 6])
    """
    return tokens.transpose(1, 2).reshape(like.shape) if layout == "NCHW" else tokens.reshape(like.shape)


def resample_map(values: Tensor, like: Tensor, layout: str) -> Tensor:
    """A map (1, H, W, C) or (1, C, H, W), such as position embeddings, resampled to the size of the map `like`.

    >>> resample_map(torch.zeros(1, 4, 4, 8), torch.zeros(2, 6, 5, 8), "NHWC").shape
    torch.Size([1, 6, 5, 8])
    """
    if values.shape[1:] == like.shape[1:]:
        return values
    size = like.shape[2:] if layout == "NCHW" else like.shape[1:3]
    resampled = F.interpolate(to_plane(values, layout)[0], [size[0], size[1]], mode="bicubic", antialias=True)
    return from_plane(resampled, None, layout)


class AcrossTokens(nn.Module):
    """A module over the token axis instead of the channel axis: (B, N, C) → (B, N, C)."""

    def __init__(self, fn: nn.Module):
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x.transpose(1, 2)).transpose(1, 2)
