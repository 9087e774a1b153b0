"""Regions of two-stage detectors while they learn: proposed, sampled and pooled for all pictures at once.

    anchors + moves → most likely ones a map → cut at the edges → suppressed among their likes → regions (B, P, 4)
    regions and the objects' own boxes → sampled (B, S, 4) → pooled from the map that suits their size

Only the suppression and the masks go picture by picture. As in torchvision, whose modules are used for their settings.

B batch, P most regions of a picture, S sampled ones, C channels.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import MultiScaleRoIAlign, nms, roi_align
from torchvision.ops.poolers import LevelMapper

from .detector_losses import mask_loss, region_losses
from .detector_targets import BELOW, BETWEEN, Objects, decode, match, of_matched, padded, sample, within


class MapOfRegion(LevelMapper):
    """Which map suits the size of a region: torchvision's choice, of maps that may leave out one between two others.

    >>> suits = MapOfRegion((4, 16))
    >>> suits([torch.tensor([[0.0, 0.0, 170.0, 170.0], [0.0, 0.0, 300.0, 300.0]])])
    tensor([0, 1])
    """

    def __init__(self, strides: Sequence[int]):
        powers = [round(math.log2(stride)) for stride in strides]
        super().__init__(powers[0], powers[-1])
        self.further = [power - powers[0] for power in powers[1:]]

    def __call__(self, boxlists: list[Tensor]) -> Tensor:
        level = super().__call__(boxlists)  # (n,), as if there were a map for each
        index = torch.zeros_like(level)
        for each in self.further:
            index = index + (level >= each)
        return index


def pooler_of(strides: Sequence[int], side: int) -> MultiScaleRoIAlign:
    """torchvision's pooling of regions, from maps of these strides.

    Left alone it would guess the strides from the first pictures that it sees, which is wrong where these are mostly
    padding, and keep what it guessed.

    Args:
        strides: of the maps, finest first, which are called 0, 1, …
        side: places along each side of what is pooled.
    """
    pooler = MultiScaleRoIAlign([str(level) for level in range(len(strides))], side, sampling_ratio=2)
    pooler.scales, pooler.map_levels = [1 / stride for stride in strides], MapOfRegion(strides)
    return pooler


@torch.no_grad()
def propose(
    objectness: Tensor, moves: Tensor, anchors: Tensor, counts: Sequence[int], sizes: Tensor, network: Any
) -> tuple[Tensor, Tensor]:
    """The regions that are most likely to show an object: (B, P, 4), and which of these are there, (B, P).

    Args:
        objectness: (B, A).
        moves: (B, A, 4).
        anchors: (A, 4).
        counts: anchors of each map.
        sizes: (B, 2), of the pictures.
        network: torchvision's, for its settings.
    """
    firsts = [0]
    for count in counts[:-1]:
        firsts.append(firsts[-1] + count)
    most = network.pre_nms_top_n()
    best = [
        part.topk(min(most, part.shape[1]), 1)[1] + first for part, first in zip(objectness.split([*counts], 1), firsts)
    ]
    level = torch.cat([torch.full_like(part[0], number) for number, part in enumerate(best)])  # (P',)
    places = torch.cat(best, 1)  # (B, P')
    these = places[..., None].expand(-1, -1, 4)
    boxes = within(decode(moves.gather(1, these), anchors[places], network.box_coder), sizes)  # (B, P', 4)
    scores = objectness.gather(1, places).sigmoid()
    fine = ((boxes[..., 2:] - boxes[..., :2]) >= network.min_size).all(2) & (scores >= network.score_thresh)
    scores = torch.where(fine, scores, -1.0)  # last in the order: these suppress nothing that counts
    boxes = torch.where(fine[..., None], boxes, 0.0)  # they may be no numbers
    apart = boxes + level[:, None] * (boxes.amax((1, 2), keepdim=True) + 1)  # boxes of other maps overlap nowhere
    kept = [nms(b, s, network.nms_thresh)[: network.post_nms_top_n()] for b, s in zip(apart, scores)]
    index, there = padded(kept)  # (B, P)
    return boxes.gather(1, index[..., None].expand(-1, -1, 4)), there & (scores.gather(1, index) >= 0)


@torch.no_grad()
def choose(regions: Tensor, there: Tensor, objects: Objects, heads: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Regions to learn from, the objects' own boxes among them.

    Args:
        regions: (B, P, 4).
        there: (B, P), which of these are there.
        objects: what the pictures hold.
        heads: torchvision's, for its matcher and sampler.

    Returns:
        Regions (B, S, 4), the object that each belongs to (B, S), and its label (B, S): 0 for the background, BELOW
        where a picture has fewer.
    """
    regions = torch.cat([regions, objects.boxes.to(regions.dtype)], 1)
    there = torch.cat([there, objects.there], 1)
    found, sampler = match(objects, regions, heads.proposal_matcher), heads.fg_bg_sampler
    shows, background = (found >= 0) & there, (found < 0) & (found != BETWEEN) & there
    places, chosen = sample(shows, background, sampler.batch_size_per_image, sampler.positive_fraction)
    found = found.gather(1, places)
    labels = torch.where(found >= 0, of_matched(objects.labels, found), 0)
    labels = torch.where(chosen, labels, BELOW)
    return regions.gather(1, places[..., None].expand(-1, -1, 4)), found.clamp(min=0), labels


def learn_regions(
    maps: dict[str, Tensor], chosen: tuple[Tensor, Tensor, Tensor], objects: Objects, heads: Any
) -> dict[str, Tensor]:
    """The losses of the heads that see regions.

    Args:
        maps: name → (B, C, H, W).
        chosen: what `choose` gave.
        objects: what the pictures hold.
        heads: torchvision's.
    """
    regions, found, labels = chosen
    rois = rois_of(regions)  # (B·S, 5)
    logits, moves = heads.box_predictor(heads.box_head(pool(maps, rois, heads.box_roi_pool)))
    classes, boxes = region_losses(logits, moves, regions, found, labels, objects, heads.box_coder)
    losses = {"loss_classifier": classes, "loss_box_reg": boxes}
    if heads.has_mask():
        assert objects.masks is not None
        counts = (labels > 0).sum(1).tolist()  # the device is waited for
        rows = (labels.flatten() > 0).nonzero()[:, 0]
        seen = heads.mask_head(pool(maps, rois[rows], heads.mask_roi_pool))
        losses["loss_mask"] = mask_loss(
            heads.mask_predictor(seen), rois[rows, 1:], found.flatten()[rows], labels.flatten()[rows], counts,
            objects.masks,
        )  # fmt: skip
    return losses


def rois_of(regions: Tensor) -> Tensor:
    """Regions (B, S, 4) with the number of their picture: (B·S, 5)."""
    number = torch.arange(len(regions), device=regions.device, dtype=regions.dtype)
    return torch.cat([number[:, None, None].expand(-1, regions.shape[1], 1), regions], 2).flatten(0, 1)


def pool(maps: dict[str, Tensor], rois: Tensor, pooler: Any) -> Tensor:
    """What the maps show in regions (n, 5), each from the map that suits its size: (n, C, s, s).

    Args:
        maps: name → (B, C, H, W).
        rois: the number of the picture, and the region.
        pooler: torchvision's, of `pooler_of`.
    """
    chosen = [maps[name] for name in pooler.featmap_names if name in maps]
    level = pooler.map_levels([rois[:, 1:]])  # (n,)
    order = level.argsort(stable=True)
    counts = torch.bincount(level, minlength=len(chosen)).tolist()  # the device is waited for, once
    parts = [
        roi_align(each, part, pooler.output_size, scale, pooler.sampling_ratio)
        for each, part, scale in zip(chosen, rois[order].split(counts), pooler.scales, strict=True)
    ]
    pooled = torch.cat(parts)
    return pooled.new_zeros(pooled.shape).index_copy(0, order, pooled)
