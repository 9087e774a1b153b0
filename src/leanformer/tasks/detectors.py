"""Detectors: torchvision's RetinaNet, Faster and Mask R-CNN around any backbone.

    images → [resize, normalise, pad] → features → FPN → heads → boxes, labels, scores (and masks)

Anchors, matching, losses, RoI pooling and suppression are torchvision's; those of training are computed for all
pictures of a batch at once (`detector_losses`). Labels are 1 … K for K classes, in targets and in answers, in all
three; 0 is the background. An anchor is 4 (RetinaNet) or 8 strides wide, and RetinaNet's two coarsest maps come from
the last one of the backbone, as in the papers.

K classes, B batch, A anchors at a place.
"""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7

from ..backbones import create
from ..core import input_of, set_card, set_classes
from ..lazy import AROUND
from .detector_base import Detector, Pyramid
from .detector_losses import anchor_losses, proposal_losses
from .detector_options import Options, parse_options
from .detector_regions import choose, learn_regions, pooler_of, propose
from .detector_targets import Objects
from .pyramid import Features, backbone_from, body_of, card_around, count_of, strides_of

RATIOS = (0.5, 1.0, 2.0)
OCTAVES = tuple(2 ** (third / 3) for third in range(3))
PUBLISHED_CHANNELS = 256
"""Of RetinaNet's head, for which the deviation of its first weights was chosen."""
PROPOSALS, MASKS = 1000, 100
"""Regions that pass the box head and the mask head in the count of a two-stage detector, as mmdetection counts."""


class RetinaNet(Detector, detection.RetinaNet):
    """One stage: every anchor is classified and moved by convolutions over the pyramid."""

    def __init__(self, features: Features, num_classes: int, options: Options):
        channels = options.channels
        pyramid = Pyramid(features, channels, LastLevelP6P7(features.channels[-1], channels))
        strides = (*features.strides, 2 * features.strides[-1], 4 * features.strides[-1])
        sizes = tuple(tuple(int(4 * stride * octave) for octave in OCTAVES) for stride in strides)
        detection.RetinaNet.__init__(
            self, pyramid, num_classes, **_sizes(features, options),
            anchor_generator=AnchorGenerator(sizes, (RATIOS,) * len(sizes)), score_thresh=options.score_threshold,
            nms_thresh=options.nms_threshold, detections_per_img=options.detections,
        )  # fmt: skip
        _widen_first_weights(self.head, channels)
        self._is_for(num_classes, options)

    def forward(self, images: Sequence[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        if self.training:
            return self.losses(images, targets)
        answers = detection.RetinaNet.forward(self, images)  # type: ignore[arg-type]
        return [{**answer, "labels": answer["labels"] + 1} for answer in answers]  # type: ignore[dict-item]

    def learn(self, images: Tensor, objects: Objects) -> dict[str, Tensor]:
        maps = list(self.backbone(images).values())
        found, anchors = self.head(maps), self.anchors(self.anchor_generator, images, maps)
        classes, boxes = anchor_losses(
            found["cls_logits"], found["bbox_regression"], anchors, objects, self.proposal_matcher, self.box_coder
        )
        return {"classification": classes, "bbox_regression": boxes}

    def dense_heads(self, images: Tensor) -> Any:
        return self.head(list(self.backbone(images).values()))

    @property
    def score_threshold(self) -> float:
        return self.score_thresh

    def answering_above(self, score: float) -> Detector:
        new: Any = super().answering_above(score)
        new.score_thresh = score
        return new


@torch.no_grad()
def _widen_first_weights(head: nn.Module, channels: int) -> None:
    """Scale the first weights of a head of so many channels, so that its answers vary as those of the published 256.

    torchvision draws them with a deviation of 0.01 at any width, of which a narrow head lets next to nothing through.
    """
    for module in head.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.mul_((PUBLISHED_CHANNELS / channels) ** 0.5)


class _TwoStages(Detector):
    rpn: Any
    roi_heads: Any

    def forward(self, images: Sequence[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        return self.losses(images, targets) if self.training else super().forward(images)

    def learn(self, images: Tensor, objects: Objects) -> dict[str, Tensor]:
        maps = self.backbone(images)
        objectness, moves = self.rpn.head(list(maps.values()))
        counts = [x.shape[1] * x.shape[2] * x.shape[3] for x in objectness]
        objectness, moves = (_joined(each, width) for each, width in ((objectness, 1), (moves, 4)))
        anchors = self.anchors(self.rpn.anchor_generator, images, list(maps.values()))
        regions = propose(objectness[..., 0].detach(), moves.detach(), anchors, counts, objects.sizes, self.rpn)
        whether, where = proposal_losses(objectness[..., 0], moves, anchors, objects, self.rpn)
        losses = learn_regions(maps, choose(*regions, objects, self.roi_heads), objects, self.roi_heads)
        return {**losses, "loss_objectness": whether, "loss_rpn_box_reg": where}

    def dense_heads(self, images: Tensor) -> Any:
        return self.rpn.head(list(self.backbone(images).values()))

    def fixed_pass(self, images: Tensor) -> Any:
        found, heads, width = [self.dense_heads(images)], self.roi_heads, self.backbone.out_channels
        regions = images.new_zeros(PROPOSALS, width, *heads.box_roi_pool.output_size)
        found.append(heads.box_predictor(heads.box_head(regions)))
        if heads.has_mask():
            regions = images.new_zeros(MASKS, width, *heads.mask_roi_pool.output_size)
            found.append(heads.mask_predictor(heads.mask_head(regions)))
        return found

    @property
    def score_threshold(self) -> float:
        return self.roi_heads.score_thresh

    def answering_above(self, score: float) -> Detector:
        new: Any = super().answering_above(score)
        new.roi_heads = copy.copy(self.roi_heads)
        new.roi_heads.score_thresh = score
        return new


def _joined(parts: Sequence[Tensor], width: int) -> Tensor:
    """Answers (B, A · width, H, W) for each map as (B, all anchors, width)."""
    return torch.cat([x.unflatten(1, (-1, width)).permute(0, 3, 4, 1, 2).flatten(1, 3) for x in parts], 1)


class FasterRCNN(_TwoStages, detection.FasterRCNN):
    """Two stages: a network proposes regions, and a head classifies and moves them."""

    def __init__(self, features: Features, num_classes: int, options: Options):
        detection.FasterRCNN.__init__(self, num_classes=None, **_two_stages(features, num_classes, options))
        self._is_for(num_classes, options)


class MaskRCNN(_TwoStages, detection.MaskRCNN):
    """Faster R-CNN with a mask of each box."""

    def __init__(self, features: Features, num_classes: int, options: Options):
        width = options.channels
        detection.MaskRCNN.__init__(
            self, num_classes=None, **_two_stages(features, num_classes, options),
            mask_roi_pool=pooler_of(features.strides, 14),
            mask_head=MaskRCNNHeads(width, (width,) * 4, 1),
            mask_predictor=MaskRCNNPredictor(width, width, num_classes + 1),
        )  # fmt: skip
        self._is_for(num_classes, options)

    def found(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        seen, _ = self.transform(list(images))
        maps = self.backbone(seen.tensors)
        proposals, _ = self.rpn(seen, maps)
        answers, _ = self.roi_heads(maps, proposals, seen.image_sizes)
        masks = [answer.pop("masks") for answer in answers]  # (n, 1, 28, 28)
        sizes = [tuple(image.shape[1:]) for image in images]
        answers = self.transform.postprocess(answers, seen.image_sizes, sizes)  # boxes in the images' pixels
        return [{**answer, "masks": each} for answer, each in zip(answers, masks)]


def _two_stages(features: Features, num_classes: int, options: Options) -> dict[str, Any]:
    strides = (*features.strides, 2 * features.strides[-1])
    hidden = 4 * options.channels
    return {
        "backbone": Pyramid(features, options.channels, LastLevelMaxPool()),
        **_sizes(features, options),
        "rpn_anchor_generator": AnchorGenerator(tuple((8 * s,) for s in strides), (RATIOS,) * len(strides)),
        "box_roi_pool": pooler_of(features.strides, 7),
        "box_head": TwoMLPHead(options.channels * 7 * 7, hidden),
        "box_predictor": detection.faster_rcnn.FastRCNNPredictor(hidden, num_classes + 1),
        "box_score_thresh": options.score_threshold,
        "box_nms_thresh": options.nms_threshold,
        "box_detections_per_img": options.detections,
    }


def _sizes(features: Features, options: Options) -> dict[str, Any]:
    """How images are resized, normalised and padded."""
    view = input_of(features.body)
    mean, std = options.mean or view["mean"], options.std or view["std"]
    sides = {"min_size": options.min_size, "max_size": options.max_size}
    divisible = features.multiple * -(-32 // features.multiple)  # 32, or more where that is no whole number of patches
    return {**sides, "image_mean": list(mean), "image_std": list(std), "size_divisible": divisible}


KINDS: dict[str, type[Any]] = {"retinanet": RetinaNet, "faster_rcnn": FasterRCNN, "mask_rcnn": MaskRCNN}


def detector(kind: str, backbone: nn.Module | str, classes: int | Sequence[str], **options: Any) -> Detector:
    """A detector around a copy of a backbone; it follows torchvision's convention.

    In training mode `detector(images, targets)` gives a dict of losses, in evaluation mode `detector(images)` a list of
    dicts with boxes, labels, scores (and masks). Images are a list of (C, H, W) with values from 0 to 1: the detector
    resizes and normalises them itself. Labels are 1 … K.

    Args:
        kind: retinanet, faster_rcnn or mask_rcnn.
        backbone: an adopted model, with or without methods that keep the grid of patches; or the name of one.
        classes: how many, or their names.
        **options: the fields of `Options`: levels, channels, min_size, max_size, score_threshold, nms_threshold,
            detections, mean, std.

    Returns:
        A model with a card: save, load, apply, fuse, describe and count take it.

    >>> import leanformer as lf
    >>> found = lf.tasks.detector("retinanet", lf.create("poolformer_s12"), classes=37, min_size=64, max_size=64).eval()
    >>> sorted(found([torch.zeros(3, 48, 60)])[0])
    ['boxes', 'labels', 'scores']
    """
    if kind not in KINDS:
        raise ValueError(f"unknown detector '{kind}'; known: {', '.join(KINDS)}")
    backbone = create(backbone) if isinstance(backbone, str) else backbone
    number, chosen, body = count_of(classes), parse_options(options), body_of(backbone)
    levels = chosen.levels
    if levels is None and kind == "retinanet" and len(strides_of(body)) > 1:
        levels = tuple(range(1, len(strides_of(body))))
    module = KINDS[kind](Features(body, levels), number, chosen)
    set_card(module, card_around(kind, backbone, Detector.at, _arguments(module, number, chosen)))
    module.to(next(backbone.parameters())).train(backbone.training)
    return module if isinstance(classes, int) else set_classes(module, classes)  # type: ignore[return-value]


def _arguments(module: Any, num_classes: int, options: Options) -> dict[str, Any]:
    """What the card says beside the backbone: all options, with what the backbone decided."""
    decided = {"levels": list(module.backbone.features.levels), "num_classes": num_classes}
    view = {"mean": list(module.transform.image_mean), "std": list(module.transform.image_std)}
    return {**dataclasses.asdict(options), **view, **decided}


def _builder(kind: str) -> Any:
    def build(
        backbone: str, num_classes: int, backbone_arguments: dict[str, Any] | None = None, **options: Any
    ) -> nn.Module:
        return detector(kind, backbone_from(backbone, backbone_arguments), num_classes, **options)

    return build


for _kind in KINDS:
    AROUND[_kind] = _builder(_kind)
