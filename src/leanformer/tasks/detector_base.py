"""What all detectors share: the pyramid under them, and what they tell beside what torchvision gives them.

B batch, C channels, H x W the image.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FeaturePyramidNetwork

from .autocast import keep_places_exact
from .detector_options import Options
from .detector_targets import Objects, check_objects, check_targets, objects_of
from .fast import optimize_features
from .pyramid import Features, random_images, with_features


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
    _anchors: tuple[Any, Tensor] | None = None
    """Those of the last size of images that it learnt from, and what they were made for."""

    def _is_for(self, num_classes: int, options: Options) -> None:
        self.num_classes = num_classes
        sides = min(options.max_size, options.min_size * 8 // 5) // 32 * 32
        size = (len(self.transform.image_mean), options.min_size, max(sides, options.min_size))
        view = {"mean": self.transform.image_mean, "std": self.transform.image_std, "crop_pct": 1.0}
        self.pretrained_cfg = self.default_cfg = {"input_size": size, "interpolation": "bilinear", **view}
        keep_places_exact(self)

    def learn(self, images: Tensor, objects: Objects) -> dict[str, Tensor]:
        """The losses by name, for images (B, C, H, W) as the network sees them.

        Args:
            images: normalised, and padded to one size.
            objects: what they hold.
        """
        raise NotImplementedError

    def losses(self, images: Sequence[Tensor], targets: Sequence[dict[str, Tensor]] | None) -> dict[str, Tensor]:
        """The losses by name, for images and targets as torchvision's convention has them; all are looked at first.

        Args:
            images: each (C, H, W), between 0 and 1.
            targets: boxes, labels and masks of each.
        """
        masks = getattr(getattr(self, "roi_heads", None), "mask_head", None) is not None
        names = ("boxes", "labels", "masks") if masks else ("boxes", "labels")
        check_targets(targets, images, names)
        plain = [{name: target[name] for name in names} for target in targets or ()]
        seen, shown = self.transform(list(images), plain)
        check_objects(shown, self.num_classes)
        return self.learn(seen.tensors, objects_of(shown, seen.image_sizes))

    def anchors(self, generator: Any, images: Tensor, maps: Sequence[Tensor]) -> Tensor:
        """The anchors of all maps, (A, 4); those of the last size are kept.

        Args:
            generator: torchvision's.
            images: (B, C, H, W).
            maps: each (B, C, H, W).
        """
        key = (generator, images.shape[2:], *(x.shape[2:] for x in maps), maps[0].dtype, maps[0].device)
        if self._anchors is None or self._anchors[0] != key:
            size = (images.shape[2], images.shape[3])
            self._anchors = key, generator(ImageList(images, [size]), list(maps))[0]
        return self._anchors[1]

    def dense_heads(self, images: Tensor) -> Any:
        """What the heads say at every place, for images (B, C, H, W) as the network sees them."""
        raise NotImplementedError

    def fixed_pass(self, images: Tensor) -> Any:
        """All layers over images (B, C, H, W) as the network sees them; see `HasFixedPass`."""
        return self.dense_heads(images)

    @property
    def score_threshold(self) -> float:
        """Boxes with a higher score are answered."""
        raise NotImplementedError

    def answering_above(self, score: float) -> "Detector":
        """The same detector around the same weights, that answers with boxes of a higher score than this."""
        new = copy.copy(self)
        new._modules = dict(self._modules)
        return new

    def lenient(self, size: tuple[int, int]) -> "Detector":
        """The same detector for small images, that answers with all boxes, however low their scores."""
        new, given = self.answering_above(0.0), self.transform
        new.transform = GeneralizedRCNNTransform(
            min(size), max(size), given.image_mean, given.image_std, size_divisible=given.size_divisible
        ).train(self.training)
        return new

    def found(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """The answers of evaluation mode, with masks as small as their head gives them, each within its box."""
        return self(images)

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

    def compiled_inside(self, compile: Any) -> nn.Module:
        """The detector with its backbone compiled; see `OptimisesInside`."""
        return with_features(self, compile(self.backbone.features))

    def no_weight_decay(self) -> set[str]:
        return {f"backbone.features.{name}" for name in self.backbone.features.no_weight_decay()}


def _named(found: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors in nested lists and dicts, by their places."""
    if isinstance(found, Tensor):
        return {name: found}
    items = found.items() if isinstance(found, dict) else enumerate(found)
    return {path: x for key, value in items for path, x in _named(value, f"{name} {key}".strip()).items()}
