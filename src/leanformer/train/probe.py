"""A linear probe: the accuracy of the best linear classifier on frozen features, its learning rate found by a sweep.

    x = [(feature − μ) / σ, 1]        W_r ← W_r − η_r m,   m ← 0.9 m + xᵀ (softmax(x W_r) − onehot) / b

All rates r are trained side by side on the same batches. A tenth of the training images is held out to choose the
rate; the classifier that is judged is then trained on all of them with that rate.
B batch, C channels and one for the bias, K classes, R rates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.draws import key_of
from .features import Features
from .neighbours import Judgement, check_numbers, judged

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
EPOCHS = 100
LARGEST_BATCH, UPDATES_AN_EPOCH = 1024, 10
MOMENTUM = 0.9
HELD_OUT = 10
"""One of so many training images chooses the rate."""


@dataclass(frozen=True)
class Probe(Judgement):
    """A linear probe's accuracy, the rate that it was trained with, and what each rate had on held-out images."""

    rate: float
    sweep: dict[float, float]
    """Rate → top-1 in per cent on training images that were held out."""


def linear_weights(
    vectors: Tensor, labels: Tensor, classes: int, rates: Sequence[float], epochs: int = EPOCHS, seed: int = 0
) -> Tensor:
    """Linear classifiers trained by SGD with momentum and a cosine, one for each rate: (n, C), (n,) → (R, C, K).

    Args:
        vectors: Features, standardised and with a column of ones where a bias is wanted, (n, C).
        labels: Their classes, (n,).
        classes: How many classes there are, K.
        rates: Learning rates, each of its own classifier.
        epochs: How often every feature is seen.
        seed: Of the order in which they are.
    """
    batch = min(LARGEST_BATCH, max(1, math.ceil(len(vectors) / UPDATES_AN_EPOCH)))
    weight = vectors.new_zeros(len(rates), vectors.shape[1], classes)  # (R, C, K)
    momentum, rate = torch.zeros_like(weight), vectors.new_tensor(rates)[:, None, None]  # (R, 1, 1)
    generator = torch.Generator().manual_seed(key_of(seed, "probe") % 2**63)
    total, update = epochs * math.ceil(len(vectors) / batch), 0
    for _ in range(epochs):
        order = torch.randperm(len(vectors), generator=generator).to(vectors.device)  # (n,)
        for rows in order.split(batch):
            x = vectors[rows]  # (B, C)
            wrong = (x @ weight).softmax(-1) - F.one_hot(labels[rows], classes)  # (R, B, K)
            momentum = MOMENTUM * momentum + x.T @ wrong / len(rows)  # (R, C, K)
            weight = weight - rate * (1 + math.cos(math.pi * update / total)) / 2 * momentum
            update += 1
    return weight


def linear_probe(
    train: Features, test: Features, rates: Sequence[float] = RATES, epochs: int = EPOCHS, seed: int = 0
) -> Probe:
    """The accuracy of a linear classifier on frozen features.

    Args:
        train: Features to learn from; they are standardised, which no linear classifier loses anything by.
        test: Features to be judged on.
        rates: Learning rates to try.
        epochs: How often every training feature is seen.
        seed: Of the order, and of the images that are held out.

    >>> features = Features(torch.eye(4).repeat(5, 1), torch.arange(20) % 4)
    >>> linear_probe(features, features).top1
    100.0
    """
    _check(train, rates, epochs)
    check_numbers(train, test)
    classes = max(train.num_classes, test.num_classes)
    deviation, mean = torch.std_mean(train.vectors, dim=0)  # (C,)
    x, y = (_standardised(each.vectors, mean, deviation) for each in (train, test))  # (n, C), (q, C)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(key_of(seed, "held out") % 2**63))
    out, kept = order.to(x.device).tensor_split([max(1, len(x) // HELD_OUT)])
    weights = linear_weights(x[kept], train.labels[kept], classes, rates, epochs, seed)  # (R, C, K)
    right = ((x[out] @ weights).argmax(-1) == train.labels[out]).double().mean(1)  # (R,)
    finite = weights.isfinite().flatten(1).all(1)  # (R,)
    sweep = dict(zip(rates, (100 * right.where(finite, torch.zeros_like(right))).tolist()))
    best = max(sweep, key=lambda rate: sweep[rate])
    weight = linear_weights(x, train.labels, classes, [best], epochs, seed)[0]  # (C, K)
    found = judged(y @ weight, test.labels, len(x))
    return Probe(found.top1, found.top5, found.images, found.known, best, sweep)


def _check(train: Features, rates: Sequence[float], epochs: int) -> None:
    if len(train.labels) < 2:
        raise ValueError(f"a linear probe learns from 2 images at least, not from {len(train.labels)}")
    if not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise ValueError(f"a linear probe needs learning rates above 0, not {list(rates)}")
    if epochs < 1:
        raise ValueError(f"a linear probe needs 1 epoch at least, not {epochs}")


def _standardised(vectors: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Features with mean 0 and variance 1, and a column of ones for the bias; a channel that never changes is 0."""
    x = (vectors - mean) / deviation.clamp_min(1e-6)  # (n, C)
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)  # (n, C + 1)
