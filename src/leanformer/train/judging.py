"""How a backbone without a head is judged while it learns: how often neighbours among known images name its class."""

import math
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..data.kinds import Data, same_images
from .evaluation import Conditions, Evaluation
from .features import Features, collect
from .neighbours import judged, neighbour_votes

NEIGHBOURS = 20
"""How many vote on the class of an image."""


class Neighbours(Evaluation):
    """An evaluation by neighbours: its accuracies go to logs under their own name; `loss` is of the votes' shares."""

    def summary(self) -> dict[str, float]:
        """The figures that go to logs."""
        return {"knn_top1": self.top1, "knn_top5": self.top5}


@torch.no_grad()
def judge_by_neighbours(
    model: nn.Module, data: Data, bank: Data | None, neighbours: int, config: dict[str, Any], how: Conditions
) -> Neighbours:
    """k-NN accuracy of a backbone's features.

    Args:
        model: The backbone, whose answer is its feature.
        data: Labelled images to be judged.
        bank: Labelled images among which neighbours are looked for; where there are none, or where they are the very
            images that are judged, it is every other image of `data`.
        neighbours: How many vote.
        config: What `core.input_of` gives of the model.
        how: Under which conditions; every process judges all images.
    """
    start = time.perf_counter()
    test = collect(model, nn.Module.__call__, data, config, how)
    if bank is not None and not same_images(bank, data):
        known = collect(model, nn.Module.__call__, bank, config, how)
    else:
        known, test = (Features(test.vectors[i::2], test.labels[i::2], test.classes) for i in (0, 1))
    if not len(test.labels):
        raise ValueError(f"{data.name} has one image that can be read, and none to look for its neighbours among")
    classes, k = max(known.num_classes, test.num_classes), min(neighbours, len(known.labels))
    votes = neighbour_votes(test.vectors, known.vectors, known.labels, classes, k)  # (q, K)
    found = judged(votes.masked_fill(votes == 0, -math.inf), test.labels, len(known.labels))
    shares = (votes / votes.sum(1, keepdim=True).clamp_min(1e-30)).clamp_min(1e-6)
    loss = F.nll_loss(shares.log(), test.labels).item()
    return Neighbours(
        found.top1, found.top5, loss, found.images, time.perf_counter() - start, test.labels.cpu(),
        votes.argmax(1).cpu(), data.classes, test.damaged,
    )  # fmt: skip
