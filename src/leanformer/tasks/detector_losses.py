"""Losses of detectors for all pictures of a batch at once; equal to torchvision's, which goes picture by picture.

    RetinaNet   mean over pictures of (Σ focal loss, Σ |moves - wanted|) / anchors that show an object
    regions     Σ smooth |moves - wanted| / places that were sampled, cross-entropy over these        masks: over pixels

torchvision takes what it needs out of tensors by lists of indices, and the device is waited for to know how many there
are: hundreds of times an update. Here all places are computed and those that do not count are left out of the sums.

B batch, M most objects of a picture, A anchors, S sampled places, K classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import roi_align, sigmoid_focal_loss

from .detector_targets import BELOW, BETWEEN, Objects, encode, match, of_matched, sample

BETA = 1 / 9
"""Where the smooth absolute difference becomes a straight line."""


def anchor_losses(
    logits: Tensor, moves: Tensor, anchors: Tensor, objects: Objects, matcher: Any, coder: Any
) -> tuple[Tensor, Tensor]:
    """RetinaNet's losses of classes and of boxes.

    Args:
        logits: (B, A, K).
        moves: (B, A, 4).
        anchors: (A, 4).
        objects: what the pictures hold.
        matcher: torchvision's.
        coder: torchvision's.
    """
    found = match(objects, anchors, matcher)  # (B, A)
    shows = found >= 0
    count = shows.sum(1).clamp(min=1)  # (B,)
    labels = of_matched(objects.labels, found) - 1  # (B, A)
    classes = torch.arange(logits.shape[2], device=logits.device)
    wanted = ((labels[..., None] == classes) & shows[..., None]).to(logits.dtype)  # (B, A, K)
    focal = sigmoid_focal_loss(logits, wanted).sum(2)  # (B, A)
    focal = torch.where(found == BETWEEN, 0.0, focal).sum(1) / count
    apart = F.l1_loss(moves, _wanted_moves(objects, found, shows, anchors, coder), reduction="none").sum(2)  # (B, A)
    apart = torch.where(shows, apart, 0.0).sum(1) / count
    return focal.mean(), apart.mean()


def _wanted_moves(objects: Objects, found: Tensor, shows: Tensor, anchors: Tensor, coder: Any) -> Tensor:
    """How places are to be moved onto their objects, (B, A, 4); not at all where they show none."""
    moves = encode(of_matched(objects.boxes, found), anchors, coder.weights)
    return torch.where(shows[..., None], moves, 0.0)


def proposal_losses(
    objectness: Tensor, moves: Tensor, anchors: Tensor, objects: Objects, network: Any
) -> tuple[Tensor, Tensor]:
    """The losses of a network that proposes regions: whether there is an object, and where.

    Args:
        objectness: (B, A).
        moves: (B, A, 4).
        anchors: (A, 4).
        objects: what the pictures hold.
        network: torchvision's, for its matcher, sampler and coder.
    """
    found = match(objects, anchors, network.proposal_matcher)  # (B, A)
    shows, sampler = found >= 0, network.fg_bg_sampler
    places, chosen = sample(shows, (found < 0) & (found != BETWEEN), sampler.batch_size_per_image,
                            sampler.positive_fraction)  # fmt: skip
    count = chosen.sum()
    wanted = shows.gather(1, places)  # (B, S)
    surprise = F.binary_cross_entropy_with_logits(
        objectness.gather(1, places), wanted.to(objectness.dtype), reduction="none"
    )
    these = places[..., None].expand(-1, -1, 4)
    target = _wanted_moves(objects, found.gather(1, places), wanted, anchors[places], network.box_coder)
    apart = F.smooth_l1_loss(moves.gather(1, these), target, beta=BETA, reduction="none").sum(2)
    return torch.where(chosen, surprise, 0.0).sum() / count, torch.where(chosen & wanted, apart, 0.0).sum() / count


def region_losses(
    logits: Tensor, moves: Tensor, regions: Tensor, found: Tensor, labels: Tensor, objects: Objects, coder: Any
) -> tuple[Tensor, Tensor]:
    """The losses of the head that classifies and moves regions.

    Args:
        logits: (B·S, K + 1), the background first.
        moves: (B·S, 4 (K + 1)).
        regions: (B, S, 4).
        found: (B, S), the object that each belongs to.
        labels: (B, S); 0 for the background, BELOW where a picture has fewer regions.
        objects: what the pictures hold.
        coder: torchvision's.
    """
    flat = labels.flatten()  # (B·S,)
    surprise = F.cross_entropy(logits, flat, ignore_index=BELOW)
    own = moves.unflatten(1, (-1, 4))  # (B·S, K + 1, 4)
    own = own.gather(1, flat.clamp(min=0)[:, None, None].expand(-1, 1, 4))[:, 0]  # (B·S, 4)
    target = _wanted_moves(objects, found, labels > 0, regions, coder).flatten(0, 1)
    apart = F.smooth_l1_loss(own, target, beta=BETA, reduction="none").sum(1)
    return surprise, torch.where(flat > 0, apart, 0.0).sum() / (flat >= 0).sum()


def mask_loss(
    logits: Tensor, regions: Tensor, numbers: Tensor, labels: Tensor, counts: Sequence[int], masks: Sequence[Tensor]
) -> Tensor:
    """Cross-entropy of the pixels of the masks of regions that show an object.

    Args:
        logits: (n, K + 1, s, s).
        regions: (n, 4), those of the first picture, then those of the second, ….
        numbers: (n,), which object of its picture.
        labels: (n,), from 1.
        counts: regions of each picture.
        masks: (m, height, width) of each picture.
    """
    if not len(regions):
        return logits.sum() * 0
    rois = torch.cat([numbers[:, None].to(regions.dtype), regions], 1).split([*counts])
    side = logits.shape[-1]
    wanted = [roi_align(mask[:, None].to(regions.dtype), part, side) for mask, part in zip(masks, rois) if len(part)]
    own = logits[torch.arange(len(regions), device=regions.device), labels]  # (n, s, s)
    return F.binary_cross_entropy_with_logits(own, torch.cat(wanted)[:, 0])
