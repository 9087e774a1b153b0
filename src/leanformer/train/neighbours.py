"""Weighted k-nearest neighbours: how good features are, without training anything (as DINO judges them).

    s_ij = cos(query_i, bank_j)        votes_ic = Σ over the k largest s_ij with label_j = c of exp((s_ij − s_i) / τ)

s_i is the largest of query i, so that the nearest counts as 1, however small τ is; no order depends on it.

q queries, n images in the bank, C channels, K classes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .features import Features

TEMPERATURE = 0.07
CHUNK = 2**25
"""Similarities held at a time."""
FAINTEST = 1e-30
"""The least vote, so that who voted can be told from who did not."""


@dataclass(frozen=True)
class Judgement:
    """Accuracies in per cent over `images` images, learnt from `known` images."""

    top1: float
    top5: float
    images: int
    known: int

    def summary(self) -> dict[str, float]:
        """The figures that go to logs."""
        return {"top1": self.top1, "top5": self.top5}


def neighbour_votes(
    queries: Tensor,
    bank: Tensor,
    labels: Tensor,
    classes: int,
    k: int = 20,
    temperature: float = TEMPERATURE,
    chunk: int = CHUNK,
) -> Tensor:
    """How much the k nearest of the bank speak for each class: (q, C), (n, C), (n,) → (q, K).

    Args:
        queries: Features to be judged, (q, C).
        bank: Features whose labels are known, (n, C).
        labels: Classes of the bank, (n,).
        classes: How many classes there are, K.
        k: How many neighbours vote.
        temperature: The smaller, the more the nearest outvote the others.
        chunk: How many similarities are held at a time; no result depends on it.

    >>> bank = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> neighbour_votes(torch.tensor([[3.0, 0.1]]), bank, torch.tensor([0, 1]), 2, k=1).argmax(1)
    tensor([0])
    """
    check_neighbours(k, len(bank))
    if not temperature > 0:
        raise ValueError(f"the temperature must be above 0, not {temperature}")
    queries, bank = F.normalize(queries, dim=1), F.normalize(bank, dim=1)
    votes = queries.new_zeros(len(queries), classes)  # (q, K)
    size = max(1, chunk // len(bank))
    for part, tally in zip(queries.split(size), votes.split(size)):
        similarity, nearest = (part @ bank.T).topk(k, dim=1)  # (b, k)
        weight = ((similarity - similarity[:, :1]) / temperature).exp()  # (b, k)
        tally.scatter_add_(1, labels[nearest], weight.clamp_min(FAINTEST))
    return votes


def knn_accuracy(train: Features, test: Features, k: int = 20, temperature: float = TEMPERATURE) -> Judgement:
    """How often the k nearest training images name the right class.

    Args:
        train: Features whose labels are known.
        test: Features to be judged.
        k: How many neighbours vote.
        temperature: Of the votes.

    >>> features = Features(torch.eye(3), torch.arange(3))
    >>> knn_accuracy(features, features, k=1).top1
    100.0
    """
    check_numbers(train, test)
    classes = max(train.num_classes, test.num_classes)
    votes = neighbour_votes(test.vectors, train.vectors, train.labels, classes, k, temperature)  # (q, K)
    return judged(votes.masked_fill(votes == 0, -torch.inf), test.labels, len(train.labels))


def check_neighbours(k: int, known: int) -> None:
    """Refuse to ask more neighbours than there are images.

    Args:
        k: How many are to vote.
        known: How many images there are.
    """
    if not 1 <= k <= known:
        raise ValueError(f"k must be from 1 to the {known} images that are known, not {k}")


def check_numbers(*parts: Features) -> None:
    """Refuse features that are no numbers, by which every image would be judged wrong.

    Args:
        parts: Features to learn from and to be judged.
    """
    for each in parts:
        wrong = int((~each.vectors.isfinite().all(1)).sum())
        if wrong:
            raise ValueError(
                f"the features of {wrong} of {len(each.vectors)} images are infinite or no numbers: the model's "
                "training may have diverged, or half precision is too narrow for it"
            )


def judged(scores: Tensor, labels: Tensor, known: int) -> Judgement:
    """Top-1 and top-5 accuracy of scores (q, K) against labels (q,).

    Args:
        scores: The higher, the likelier the class; minus infinity: no answer at all.
        labels: The right classes.
        known: How many images the scores were learnt from.
    """
    best, top = scores.topk(min(5, scores.shape[1]), dim=1)  # (q, 5)
    hit = (top == labels[:, None]) & (best > -torch.inf)  # (q, 5)
    first, any_ = (100 * each.double().mean().item() for each in (hit[:, 0], hit.any(1)))
    return Judgement(first, any_, len(labels), known)
