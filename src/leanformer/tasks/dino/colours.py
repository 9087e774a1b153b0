"""Grey, blur and solarisation of whole batches, on the device where the images lie.

B images, C channels, S x S pixels.
"""

import torch
from torch import Tensor


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur of every image by its own sigma, in pixels; 0 leaves an image as it is: (B, C, S, S), (B,)."""
    rows, columns = (_gaussian(size, sigma) for size in images.shape[2:])  # (B, S, S)
    return rows[:, None] @ images @ columns[:, None].transpose(2, 3)


def _gaussian(size: int, sigma: Tensor) -> Tensor:
    place = torch.arange(size, device=sigma.device, dtype=torch.float32)
    distance = (place[:, None] - place).square()  # (S, S)
    weights = (-distance / (2 * sigma.square().clamp_min(1e-4))[:, None, None]).exp()  # (B, S, S)
    return weights / weights.sum(-1, keepdim=True)


def colours(images: Tensor, grey: float, blurred: float, solarised: float) -> Tensor:
    """Images in [0, 1], each with these probabilities made grey, blurred (sigma 0.1 to 2 at 224 pixels), solarised.

    Args:
        images: (B, C, S, S)
        grey: How often an image loses its colours.
        blurred: How often it is blurred.
        solarised: How often its bright half is inverted.
    """
    chance = torch.rand(4, len(images), device=images.device)  # (4, B)
    at = (slice(None), None, None, None)
    if images.shape[1] == 3:
        weights = images.new_tensor([0.299, 0.587, 0.114])[:, None, None]
        luma = (images * weights).sum(1, keepdim=True).expand_as(images)
        images = torch.where((chance[0] < grey)[at], luma, images)
    sigma = (0.1 + 1.9 * chance[1]) * images.shape[-1] / 224  # (B,)
    images = blur(images, sigma * (chance[2] < blurred)) if blurred else images
    return torch.where((chance[3] < solarised)[at] & (images > 0.5), 1 - images, images)
