"""Swin's shifted windows on maps of any size: pad, shift, attend within windows, and the way back.

    map (H, W) → zeros on the right and below, up to whole windows (H', W') → roll by -shift → windows
    mask: 0 between places that were neighbours before the roll, -100 between those it brought together

timm rolls before it pads, which is the same function only where whole windows fill the map: elsewhere the rows that
the roll brings round lie before the padding, and the mask does not know. Here the padding comes first, as in Swin's
own detectors. A side that one window covers is not shifted, as in Swin's classifiers.

B batch, H x W the map, C channels, h x w a window, N = h w its places.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Attend = Callable[[Tensor, Tensor | None], Tensor]
Pair = tuple[int, int]


def shifted_windows(x: Tensor, window: Pair, shift: Pair, attend: Attend) -> Tensor:
    """Attention within shifted windows over a map (B, H, W, C) of any size.

    Args:
        x: the map.
        window: height and width of a window.
        shift: by how much the windows are shifted, where the map has more than one.
        attend: windows (n, N, C) and their mask (n / B, N, N), if any → windows (n, N, C).

    >>> shifted_windows(torch.ones(1, 5, 6, 2), (4, 4), (2, 2), lambda x, mask: x).shape
    torch.Size([1, 5, 6, 2])
    """
    batch, height, width, channels = x.shape
    down, right = (shift[0] if height > window[0] else 0), (shift[1] if width > window[1] else 0)
    x = F.pad(x, (0, 0, 0, -width % window[1], 0, -height % window[0]))  # (B, H', W', C)
    padded = (x.shape[1], x.shape[2])
    mask = window_mask(padded, window, (down, right), x) if down or right else None
    x = torch.roll(x, (-down, -right), (1, 2)) if down or right else x
    tall, wide = padded[0] // window[0], padded[1] // window[1]
    x = x.reshape(batch, tall, window[0], wide, window[1], channels).transpose(2, 3)
    x = attend(x.reshape(-1, window[0] * window[1], channels), mask)  # (B tall wide, N, C)
    x = x.reshape(batch, tall, wide, *window, channels).transpose(2, 3).reshape(batch, *padded, channels)
    x = torch.roll(x, (down, right), (1, 2)) if down or right else x
    return x[:, :height, :width].contiguous()


def window_mask(size: Pair, window: Pair, shift: Pair, like: Tensor) -> Tensor:
    """What is added to the logits of attention in each window of a rolled map: (n, N, N).

    Args:
        size: of the map, in whole windows.
        window: height and width of a window.
        shift: by how much the map was rolled.
        like: a tensor of the device and dtype wanted.

    >>> window_mask((4, 4), (2, 2), (1, 0), torch.zeros(1))[-1]
    tensor([[   0.,    0., -100., -100.],
            [   0.,    0., -100., -100.],
            [-100., -100.,    0.,    0.],
            [-100., -100.,    0.,    0.]])
    """
    rows, columns = (_regions(*side, like) for side in zip(size, window, shift))
    regions = (3 * rows[:, None] + columns).reshape(size[0] // window[0], window[0], size[1] // window[1], window[1])
    regions = regions.transpose(1, 2).reshape(-1, window[0] * window[1])  # (n, N)
    return torch.where(regions[:, :, None] != regions[:, None, :], -100.0, 0.0).to(like.dtype)


def _regions(side: int, window: int, shift: int, like: Tensor) -> Tensor:
    """Along one side: 0 for places far from the end, 1 for those beside what the roll brought round, 2 for that."""
    place = torch.arange(side, device=like.device)
    return (place >= side - window).long() + (place >= side - shift).long() if shift else torch.zeros_like(place)
