"""Grey, blur and solarisation of whole batches, on the device where the images lie.

B images, C channels, S x S pixels.
"""

import torch
from torch import Tensor

from ...data.rand_augment import constant

DRAWS = 4
"""Random numbers that an image's colours take."""
Often = float | Tensor
"""A probability, or one for each image (B,)."""


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur of every image by its own sigma, in pixels; 0 leaves an image as it is: (B, C, S, S), (B,)."""
    rows, columns = (_gaussian(size, sigma).to(images.dtype) for size in images.shape[2:])  # (B, S, S)
    return rows[:, None] @ images @ columns[:, None].transpose(2, 3)


def _gaussian(size: int, sigma: Tensor) -> Tensor:
    place = torch.arange(size, device=sigma.device, dtype=torch.float32)
    distance = (place[:, None] - place).square()  # (S, S)
    weights = (-distance / (2 * sigma.square().clamp_min(1e-4))[:, None, None]).exp()  # (B, S, S)
    return weights / weights.sum(-1, keepdim=True)


def colours(images: Tensor, grey: Often, blurred: Often, solarised: Often, draws: Tensor | None = None) -> Tensor:
    """Images in [0, 1], each with these probabilities made grey, blurred (sigma 0.1 to 2 at 224 pixels), solarised.

    Args:
        images: (B, C, S, S)
        grey: How often an image loses its colours.
        blurred: How often it is blurred.
        solarised: How often its bright half is inverted.
        draws: Uniform numbers (DRAWS, B); by default torch's next.
    """
    chance = torch.rand(DRAWS, len(images), device=images.device) if draws is None else draws  # (4, B)
    at = (slice(None), None, None, None)
    if images.shape[1] == 3:
        luma = (images * constant((0.299, 0.587, 0.114), images.device)).sum(1, keepdim=True)  # (B, 1, S, S)
        images = torch.where((chance[0] < grey)[at], luma.to(images.dtype), images)
    sigma = (0.1 + 1.9 * chance[1]) * images.shape[-1] / 224  # (B,)
    images = images if isinstance(blurred, float | int) and not blurred else blur(images, sigma * (chance[2] < blurred))
    return torch.where((chance[3] < solarised)[at] & (images > 0.5), 1 - images, images)
