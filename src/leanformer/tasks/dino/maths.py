"""DINO's loss, centre and schedules as pure functions.

    p_t = softmax((t − c) / τ_t)     p_s = softmax(s / τ_s)     loss = mean of −Σ p_t log p_s over pairs of crops t ≠ s
    c ← m c + (1 − m) mean(t)         θ_t ← λ θ_t + (1 − λ) θ_s

V crops of an image, the first G of them global; B images, K prototypes.
"""

import math

import torch.distributed as dist
from torch import Tensor


def targets(teacher: Tensor, centre: Tensor, temperature: float | Tensor) -> Tensor:
    """The teacher's answers p_t to its crops, (G, B, K).

    Args:
        teacher: Its scores, (G, B, K).
        centre: What is subtracted from them, (K,).
        temperature: The teacher's, smaller than the student's: its answers are sharper.
    """
    return ((teacher - centre) / temperature).softmax(-1)


def dino_loss(student: Tensor, target: Tensor, student_temp: float) -> Tensor:
    """Cross-entropy between the teacher's global crops and every other crop of the student, averaged over pairs.

    The sum over pairs is taken apart, Σ_t p_t · Σ_s log p_s − Σ_t p_t · log p_t, so that no pair is looked at by
    itself: as a product of matrices it would have B K terms for G V numbers, for which a GPU has no good way.

    Args:
        student: Scores of all crops, the global ones first, (V, B, K).
        target: The teacher's answers to the global crops, (G, B, K).
        student_temp: The student's temperature.
    """
    (crops, images, _), known = student.shape, len(target)
    answer = (student / student_temp).log_softmax(-1)  # (V, B, K)
    whole = (target.sum(0) * answer.sum(0)).sum() - (target * answer[:known]).sum()
    return -whole / (known * (crops - 1) * images)


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
