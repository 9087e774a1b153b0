"""DINO's parts as pure functions: loss, centre, schedules, colours; and the projection head.

    p_t = softmax((t − c) / τ_t)     p_s = softmax(s / τ_s)     loss = mean of −Σ p_t log p_s over pairs of crops t ≠ s
    c ← m c + (1 − m) mean(t)         θ_t ← λ θ_t + (1 − λ) θ_s

V crops of an image, the first G of them global; B images, K prototypes, C channels, S x S pixels.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn


def dino_loss(student: Tensor, teacher: Tensor, centre: Tensor, student_temp: float, teacher_temp: float) -> Tensor:
    """Cross-entropy between the teacher's global crops and every other crop of the student, averaged over pairs.

    Args:
        student: Scores of all crops, the global ones first, (V, B, K).
        teacher: Scores of the global crops, (G, B, K).
        centre: What is subtracted from the teacher's scores, (K,).
        student_temp: The student's temperature.
        teacher_temp: The teacher's, smaller: its answers are sharper.
    """
    target = ((teacher - centre) / teacher_temp).softmax(-1)  # (G, B, K)
    answer = (student / student_temp).log_softmax(-1)  # (V, B, K)
    pairs = -torch.einsum("gbk,vbk->gv", target, answer) / teacher.shape[1]  # (G, V)
    other = 1 - torch.eye(*pairs.shape, device=pairs.device, dtype=pairs.dtype)
    return (pairs * other).sum() / other.sum()


def moved_centre(centre: Tensor, teacher: Tensor, momentum: float) -> Tensor:
    """The centre (K,), moved towards the mean of the teacher's scores (G, B, K) over all processes."""
    mean = teacher.detach().float().mean((0, 1))  # (K,)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(mean)
        mean = mean / dist.get_world_size()
    return centre * momentum + mean * (1 - momentum)


def cosine(start: float, end: float, progress: float) -> float:
    """From `start` to `end` along half a cosine.

    >>> cosine(1.0, 0.0, 0.5)
    0.5
    """
    return end + (start - end) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p log p over the last axis."""
    return -(probabilities * probabilities.clamp_min(1e-30).log()).sum(-1)


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


class Head(nn.Module):
    """Three layers with GELU to a bottleneck, its direction compared with K prototypes of length one.

    >>> Head(8, 16, hidden=12, bottleneck=4)(torch.zeros(2, 8)).shape
    torch.Size([2, 16])
    """

    def __init__(self, channels: int, prototypes: int, hidden: int = 2048, bottleneck: int = 256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        self.prototypes = nn.Parameter(torch.empty(prototypes, bottleneck))
        self.frozen = False
        """Whether the prototypes stay as they are, as in the first epoch."""
        trunc_normal_(self.prototypes, std=0.02)
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.prototypes.detach() if self.frozen else self.prototypes
        return F.linear(F.normalize(self.layers(x), dim=-1), F.normalize(weight, dim=-1))  # (B, K)
