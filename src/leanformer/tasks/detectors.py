"""Detectors: torchvision's RetinaNet, Faster and Mask R-CNN around any backbone.

    images → [resize, normalise, pad] → features → FPN → heads → boxes, labels, scores (and masks)

Anchors, matching, losses, RoI pooling and suppression are torchvision's. Labels are 1 … K for K classes, in targets
and in answers, in all three; 0 is the background. An anchor is 4 (RetinaNet) or 8 strides wide, and RetinaNet's two
coarsest maps come from the last one of the backbone, as in the papers.

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
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7

from ..backbones import create
from ..core import input_of, set_card, set_classes
from ..lazy import AROUND
from .autocast import keep_places_exact
from .detector_options import Options, parse_options
from .fast import optimize_features
from .pyramid import Features, backbone_from, body_of, card_around, count_of, random_images, strides_of

RATIOS = (0.5, 1.0, 2.0)
OCTAVES = tuple(2 ** (third / 3) for third in range(3))
PROPOSALS, MASKS = 1000, 100
"""Regions that pass the box head and the mask head in the count of a two-stage detector, as mmdetection counts."""


class Pyramid(nn.Module):
    """The maps of a backbone, joined by a feature pyramid network: what torchvision calls a detector's backbone."""

    def __init__(self, features: Features, channels: int, extra: nn.Module):
        super().__init__()
        self.features = features
        self.fpn = FeaturePyramidNetwork(list(features.channels), channels, extra)  # type: ignore[arg-type]
        self.out_channels = channels

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.fpn({str(index): x for index, x in enumerate(self.features(images))})


class Detector(nn.Module):
    """What our three detectors have beside what torchvision gives them."""

    backbone: Any
    transform: Any
    at = "backbone.features.body"
    """Where the adopted backbone stands."""

    def _is_for(self, num_classes: int, options: Options) -> None:
        self.num_classes = num_classes
        sides = min(options.max_size, options.min_size * 8 // 5) // 32 * 32
        size = (len(self.transform.image_mean), options.min_size, max(sides, options.min_size))
        view = {"mean": self.transform.image_mean, "std": self.transform.image_std, "crop_pct": 1.0}
        self.pretrained_cfg = self.default_cfg = {"input_size": size, "interpolation": "bilinear", **view}
        keep_places_exact(self)

    def dense_heads(self, images: Tensor) -> Any:
        """What the heads say at every place, for images (B, C, H, W) as the network sees them."""
        raise NotImplementedError

    def fixed_pass(self, images: Tensor) -> Any:
        """All layers over images (B, C, H, W) as the network sees them; see `HasFixedPass`."""
        return self.dense_heads(images)

    def lenient(self, size: tuple[int, int]) -> "Detector":
        """The same detector for small images, that answers with all boxes, however low their scores."""
        new = copy.copy(self)
        new._modules = dict(self._modules)
        given: Any = self.transform
        new.transform = GeneralizedRCNNTransform(
            min(size), max(size), given.image_mean, given.image_std, size_divisible=given.size_divisible
        ).train(self.training)
        return new

    @torch.no_grad()
    def evidence(self) -> dict[str, Tensor]:
        """Outputs of all heads, and boxes, labels, scores and masks, on two random images; see `HasEvidence`.

        The model is in evaluation mode.
        """
        images = random_images(self.backbone.features)
        size = (images.shape[2], images.shape[3])
        shown = _named(self.dense_heads(images))
        for index, answer in enumerate(self.lenient(size)(list(images))):
            shown |= {f"{name} {index}": x.to(images) for name, x in answer.items()}
        return shown

    def optimised_inside(self, optimize: Any, **how: Any) -> nn.Module:
        """The detector with its backbone optimised; see `OptimisesInside`."""
        return optimize_features(self, optimize, **how)

    def no_weight_decay(self) -> set[str]:
        return {f"backbone.features.{name}" for name in self.backbone.features.no_weight_decay()}


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
        self._is_for(num_classes, options)

    def forward(self, images: Sequence[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        if targets is not None:
            targets = [{**target, "labels": target["labels"] - 1} for target in targets]
        answers = detection.RetinaNet.forward(self, images, targets)  # type: ignore[arg-type]
        if self.training:
            return answers
        return [{**answer, "labels": answer["labels"] + 1} for answer in answers]  # type: ignore[dict-item]

    def dense_heads(self, images: Tensor) -> Any:
        return self.head(list(self.backbone(images).values()))

    def lenient(self, size: tuple[int, int]) -> Detector:
        new: Any = super().lenient(size)
        new.score_thresh = 0.0
        return new


class _TwoStages(Detector):
    rpn: Any
    roi_heads: Any

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

    def lenient(self, size: tuple[int, int]) -> Detector:
        new: Any = super().lenient(size)
        new.roi_heads = copy.copy(self.roi_heads)
        new.roi_heads.score_thresh = 0.0
        return new


class FasterRCNN(_TwoStages, detection.FasterRCNN):
    """Two stages: a network proposes regions, and a head classifies and moves them."""

    def __init__(self, features: Features, num_classes: int, options: Options):
        detection.FasterRCNN.__init__(self, num_classes=None, **_two_stages(features, num_classes, options))
        self._is_for(num_classes, options)


class MaskRCNN(_TwoStages, detection.MaskRCNN):
    """Faster R-CNN with a mask of each box."""

    def __init__(self, features: Features, num_classes: int, options: Options):
        width, names = options.channels, [str(level) for level in range(len(features.strides))]
        detection.MaskRCNN.__init__(
            self, num_classes=None, **_two_stages(features, num_classes, options),
            mask_roi_pool=MultiScaleRoIAlign(names, output_size=14, sampling_ratio=2),
            mask_head=MaskRCNNHeads(width, (width,) * 4, 1),
            mask_predictor=MaskRCNNPredictor(width, width, num_classes + 1),
        )  # fmt: skip
        self._is_for(num_classes, options)


def _two_stages(features: Features, num_classes: int, options: Options) -> dict[str, Any]:
    strides = (*features.strides, 2 * features.strides[-1])
    names = [str(level) for level in range(len(features.strides))]
    hidden = 4 * options.channels
    return {
        "backbone": Pyramid(features, options.channels, LastLevelMaxPool()),
        **_sizes(features, options),
        "rpn_anchor_generator": AnchorGenerator(tuple((8 * s,) for s in strides), (RATIOS,) * len(strides)),
        "box_roi_pool": MultiScaleRoIAlign(names, output_size=7, sampling_ratio=2),
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
    return {**sides, "image_mean": list(mean), "image_std": list(std), "size_divisible": max(32, features.multiple)}


def _named(found: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors in nested lists and dicts, by their places."""
    if isinstance(found, Tensor):
        return {name: found}
    items = found.items() if isinstance(found, dict) else enumerate(found)
    return {path: x for key, value in items for path, x in _named(value, f"{name} {key}".strip()).items()}


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
