"""Segmenters: decoders of segmentation-models-pytorch around any backbone.

    images (B, C, H, W) → features → decoder → 1x1 convolution → resized to the image: logits (B, K, H, W)

    fpn       Semantic FPN (Kirillov et al., 2019): the maps of a feature pyramid, brought to one size and added
    upernet   UPerNet (Xiao et al., 2018): pyramid pooling over the coarsest map, a feature pyramid, all maps joined

Images come normalised as the backbone wants them. Their batch norms fold when the model is fused.

B batch, C channels, H x W the image, K classes.
"""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..backbones import create
from ..core import input_of, set_card, set_classes
from ..fields import Count, Share, check_value
from ..lazy import AROUND
from .pyramid import Features, backbone_from, body_of, card_around, count_of, random_images

KINDS = ("fpn", "upernet")
MAPS = 4
"""Both decoders take four maps, each of half the size of the one before."""


class Decoder(nn.Module):
    """A decoder over four maps; folds its batch norms when it is fused."""

    def __init__(self, kind: str, widths: Sequence[int], channels: int):
        super().__init__()
        self.decoder: nn.Module = _decoder(kind, widths, channels)
        self.kind = kind
        self.channels = channels // 2 if kind == "fpn" else channels

    def forward(self, maps: list[Tensor]) -> Tensor:
        unused: list[Any] = [None, None]  # UPerNet's skips the maps at strides 1 and 2
        if self.kind == "upernet":
            return self.decoder([*unused, *maps])
        if not torch.compiler.is_exporting() and math.prod((maps[-1].shape[0], *maps[-1].shape[2:])) == 1:
            return self.decoder([x.expand(2, -1, -1, -1) for x in maps])[:1]  # a group norm refuses a single place
        return self.decoder(maps)

    def fused(self) -> nn.Module:
        """The same decoder with every batch norm folded into the convolution before it."""
        new = copy.deepcopy(self).eval()
        for module in list(new.modules()):
            if not isinstance(module, nn.Sequential):
                continue
            layers = list(module)
            for index, (conv, norm) in enumerate(pairwise(layers)):
                if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    module[index], module[index + 1] = fuse_conv_bn_eval(conv, norm), nn.Identity()
        return new


def _decoder(kind: str, widths: Sequence[int], channels: int) -> nn.Module:
    try:
        from segmentation_models_pytorch.decoders.fpn.decoder import FPNDecoder
        from segmentation_models_pytorch.decoders.upernet.decoder import UPerNetDecoder
    except ImportError as error:
        needed = "segmenters need segmentation-models-pytorch: pip install 'leanformer[dense]'"
        raise ValueError(f"{needed} ({error})") from error
    if kind == "upernet":
        return UPerNetDecoder([0, 0, *widths], encoder_depth=MAPS + 1, decoder_channels=channels)
    return FPNDecoder(list(widths), MAPS - 1, channels, channels // 2, dropout=0.0)


class Segmenter(nn.Module):
    """A backbone, a decoder and a classifier of every pixel: images (B, C, H, W) → logits (B, K, H, W)."""

    at = "features.body"
    """Where the adopted backbone stands."""

    def __init__(self, kind: str, features: Features, num_classes: int, channels: int, dropout: float):
        super().__init__()
        if len(features.strides) != MAPS or any(b != 2 * a for a, b in pairwise(features.strides)):
            raise ValueError(
                f"{kind} takes four maps, each of half the size of the one before; strides are {features.strides}"
            )
        self.num_classes = num_classes
        self.features = features
        self.decoder = Decoder(kind, features.channels, channels)
        self.drop = nn.Dropout2d(dropout)
        self.head = nn.Conv2d(self.decoder.channels, num_classes, 1)
        self.pretrained_cfg = self.default_cfg = {**input_of(features.body), "input_size": (3, 512, 512)}

    def forward(self, images: Tensor) -> Tensor:
        logits = self.head(self.drop(self.decoder(self.features(images))))  # (B, K, H'/s, W'/s) of the padded image
        stride = self.features.strides[0]
        whole = [logits.shape[2] * stride, logits.shape[3] * stride]
        logits = F.interpolate(logits, whole, mode="bilinear", align_corners=False)  # (B, K, H', W')
        return logits[:, :, : images.shape[2], : images.shape[3]]

    @torch.no_grad()
    def evidence(self) -> dict[str, Tensor]:
        """The logits of two small random images; see `HasEvidence`."""
        return {"logits": self(random_images(self.features))}

    def get_classifier(self) -> nn.Module:
        return self.head

    def no_weight_decay(self) -> set[str]:
        return {f"features.{name}" for name in self.features.no_weight_decay()}


def segmenter(
    kind: str,
    backbone: nn.Module | str,
    classes: int | Sequence[str],
    *,
    channels: int | None = None,
    dropout: float = 0.1,
) -> Segmenter:
    """A segmenter around a copy of a backbone: normalised images (B, C, H, W) → logits (B, K, H, W), at any size.

    Args:
        kind: fpn (Semantic FPN) or upernet.
        backbone: an adopted model, with or without methods that keep the grid of patches; or the name of one.
        classes: how many, or their names.
        channels: of the decoder; by default 256 for fpn (and half of it behind), 512 for upernet, as published.
        dropout: of whole channels before the last convolution.

    Returns:
        A model with a card: save, load, apply, fuse, describe and count take it.

    >>> import torch, leanformer as lf
    >>> model = lf.tasks.segmenter("fpn", lf.create("poolformer_s12"), classes=12, channels=64).eval()
    >>> model(torch.zeros(1, 3, 60, 45)).shape
    torch.Size([1, 12, 60, 45])
    """
    if kind not in KINDS:
        raise ValueError(f"unknown segmenter '{kind}'; known: {', '.join(KINDS)}")
    backbone = create(backbone) if isinstance(backbone, str) else backbone
    number, channels = count_of(classes), channels or (512 if kind == "upernet" else 256)
    check_value("channels", channels, Count)
    check_value("dropout", dropout, Share)
    if kind == "fpn" and channels % 64:
        raise ValueError(f"channels of fpn are a multiple of 64, for its group norms; not {channels}")
    features = Features(body_of(backbone), norm=kind == "fpn")  # UPerNet's decoder has norms of its own
    module = Segmenter(kind, features, number, channels, dropout)
    arguments = {"num_classes": number, "channels": channels, "dropout": dropout}
    set_card(module, card_around(kind, backbone, Segmenter.at, arguments))
    module.to(next(backbone.parameters())).train(backbone.training)
    return module if isinstance(classes, int) else set_classes(module, classes)  # type: ignore[return-value]


def _builder(kind: str) -> Any:
    def build(
        backbone: str, num_classes: int, backbone_arguments: dict[str, Any] | None = None, **options: Any
    ) -> nn.Module:
        return segmenter(kind, backbone_from(backbone, backbone_arguments), num_classes, **options)

    return build


for _kind in KINDS:
    AROUND[_kind] = _builder(_kind)
