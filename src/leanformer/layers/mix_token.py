"""Mix-token: a box of patches changes places between an image and its partner, after the patch embedding.

    lam ~ U(0, 1)       box of sqrt(1 - lam) of each side, centre anywhere, clipped to the plane
    x'_i = m x_flip(i) + (1 - m) x_i        m: one for the patches in the box; the partner is the flipped batch

Unlike CutMix, no patch ever holds two images. A model that is trained with it answers with a `Dense`.
B batch, H x W the plane of patches, N = H·W, C channels, K classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Dense(NamedTuple):
    """What a model with a token-label head answers in training."""

    logits: Tensor
    """Of the class token, (B, K)."""
    distilled: Tensor | None
    """Of the distillation token where there is one, (B, K)."""
    dense: Tensor
    """Of every patch token that is left, (B, N, K), in the order of the tokens."""
    mixed: Tensor
    """Which patches of the plane came from the partner image, (H·W,) bool."""


def draw_mix(height: int, width: int, device: torch.device | None = None) -> Tensor:
    """A random box of the plane as a mask (H, W), true inside. The same box serves the whole batch.

    >>> draw_mix(14, 14).shape
    torch.Size([14, 14])
    """
    ratio = torch.rand((), device=device).sqrt()  # sqrt(1 - lam); 1 - lam is as uniform as lam
    rows = _side(height, ratio, device)  # (H,)
    columns = _side(width, ratio, device)  # (W,)
    return rows[:, None] & columns[None]  # (H, W)


def mix_tokens(x: Tensor, mask: Tensor) -> Tensor:
    """Planes of tokens (B, H, W, C) with the masked ones (H, W) taken from the flipped batch.

    >>> x = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1).expand(2, 1, 2, 1)
    >>> mix_tokens(x, torch.tensor([[True, False]])).flatten(1)
    tensor([[2., 1.],
            [1., 2.]])
    """
    return torch.where(mask[None, :, :, None], x.flip(0), x)


def _side(length: int, ratio: Tensor, device: torch.device | None) -> Tensor:
    half = (length * ratio).long() // 2
    centre = torch.randint(length, (), device=device)
    at = torch.arange(length, device=device)
    return (at >= centre - half) & (at < centre + half)
