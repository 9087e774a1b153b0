"""Feature pyramids: maps of several resolutions from any backbone, for detectors and segmenters.

    stages      Swin, MetaFormers, GFNet-H                a map behind each stage, each with a norm of its own
    simple      ViT, DeiT, LV-ViT, GFNet                  the last map: 4 and 2 times as large, as it is, and half

An image is padded with zeros, on the right and below, up to a multiple of the largest stride; so a map at stride s has
exactly the size of the padded image / s. The norms of stages are new, as in Swin's and PoolFormer's own detectors; the
simple pyramid is ViTDet's.

B batch, H x W the image, C channels.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional as F

from ..backbones import from_card
from ..backbones.any_size import PLAIN, STAGED, any_size
from ..backbones.metaformer import MetaFormer
from ..core import Card, card_json, card_of, input_of, plain_of, set_card, share
from ..core.reduce import LeavesGrid
from ..layers.norms import make_norm
from ..lazy import AROUND

SIMPLE = (1 / 4, 1 / 2, 1, 2)
"""Strides of the simple pyramid, in patches."""


class StageNorms(nn.Module):
    """A norm for the map of each stage."""

    needs_grid = True

    def __init__(self, norms: Sequence[nn.Module]):
        super().__init__()
        self.norms = nn.ModuleList(norms)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        return [norm(x) for norm, x in zip(self.norms, maps, strict=True)]


class SimplePyramid(nn.Module):
    """ViTDet's pyramid over one map (B, C, H, W): 4, 2, 1 and 1/2 times its size, with C/4, C/2, C and C channels.

    >>> [tuple(x.shape) for x in SimplePyramid(16, (0, 3))([torch.zeros(1, 16, 4, 6)])]
    [(1, 4, 16, 24), (1, 16, 2, 3)]
    """

    needs_grid = True

    def __init__(self, dim: int, levels: Sequence[int], norm: bool = True):
        super().__init__()
        self.channels = tuple((dim // 4, dim // 2, dim, dim)[level] for level in levels)
        norms = [LayerNorm2d(width) if norm else nn.Identity() for width in self.channels]
        self.steps = nn.ModuleList(nn.Sequential(_step(dim, level), each) for level, each in zip(levels, norms))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        return [step(maps[-1]) for step in self.steps]


def _step(dim: int, level: int) -> nn.Module:
    up = nn.ConvTranspose2d(dim, dim // 2, 2, 2)
    if level == 0:
        return nn.Sequential(up, LayerNorm2d(dim // 2), nn.GELU(), nn.ConvTranspose2d(dim // 2, dim // 4, 2, 2))
    return (up, nn.Identity(), nn.MaxPool2d(2))[level - 1]


class Features(nn.Module):
    """A backbone without its classifier that gives maps, finest first: images (B, C, H, W) → [(B, C_i, H_i, W_i)].

    `strides` and `channels` say what each map is; `lf.features` makes one from a model.
    """

    def __init__(self, body: nn.Module, levels: Sequence[int] | None = None, norm: bool = True):
        super().__init__()
        self.staged = _staged(body)
        strides, channels = strides_of(body), _channels(body)
        self.levels = _chosen(levels, len(strides))
        self.strides = tuple(strides[level] for level in self.levels)
        self.multiple = max(strides) if self.staged else max(strides[2], self.strides[-1])  # whole patches at least
        self.forks = isinstance(body, MetaFormer) and body.fork_feat
        _behead(body, keep_norm=not self.staged, keep_forks=self.forks)
        self.body: Any = body
        self.pretrained_cfg = self.default_cfg = dict(input_of(body))
        if self.staged:
            self.channels = tuple(channels[level] for level in self.levels)
            self.maps: nn.Module = StageNorms([_norm(body, width, norm and not self.forks) for width in self.channels])
        else:
            self.maps = SimplePyramid(channels[2], self.levels, norm)
            self.channels = self.maps.channels

    def forward(self, images: Tensor) -> list[Tensor]:
        images = padded(images, self.multiple)
        if self.staged:
            taken = self.body.forward_intermediates(
                images, indices=list(self.levels), norm=self.forks, intermediates_only=True
            )
        else:
            taken = self.body.forward_intermediates(images, indices=1, norm=True, intermediates_only=True)
        return self.maps(taken)

    def no_weight_decay(self) -> set[str]:
        own = self.body.no_weight_decay() if hasattr(self.body, "no_weight_decay") else ()
        return {f"body.{name}" for name in own}


def features(model: nn.Module, levels: Sequence[int] | None = None, *, norm: bool = True) -> Features:
    """A copy of a backbone, without its classifier, that gives maps of several resolutions for images of any size.

    Args:
        model: any adopted ViT, LV-ViT, Swin, MetaFormer or GFNet, with or without methods that keep the grid of
            patches.
        levels: which maps, counted from 0, finest first: stages of the model, or of the simple pyramid of a plain ViT
            (a quarter, half, one and two patches); all by default.
        norm: whether each map passes a new norm of its own.

    Returns:
        A module from images (B, C, H, W) to a list of maps, with their `strides` and `channels`.

    Raises:
        ValueError: if a method drops, merges or mixes tokens, or weights fit one size of images alone.

    >>> import leanformer as lf
    >>> maps = lf.features(lf.create("poolformer_s12"), levels=(1, 2, 3))
    >>> maps.strides, maps.channels
    ((8, 16, 32), (128, 320, 512))
    >>> [tuple(x.shape[2:]) for x in maps(torch.zeros(1, 3, 70, 33))]
    [(12, 8), (6, 4), (3, 2)]
    """
    module = Features(body_of(model), levels, norm)
    arguments = {"levels": list(module.levels), "norm": norm}
    new = set_card(module, card_around("features", model, "body", arguments))
    return new.train(model.training)  # type: ignore[return-value]


def body_of(model: nn.Module) -> nn.Module:
    """A copy of a backbone that takes images of any size; refuses one whose tokens leave the grid of patches."""
    model = plain_of(model)
    card_of(model)
    for path, module in model.named_modules():
        if isinstance(module, LeavesGrid) and module.leaves_grid:
            raise ValueError(
                f"{path} ({type(module).__name__}) drops, merges or mixes tokens, so that no maps of patches are left "
                "for a detector or a segmenter; methods that keep every patch in its place go: those that change "
                "feed-forward layers, norms or token mixers"
            )
    return any_size(copy.deepcopy(model))


def card_around(kind: str, backbone: nn.Module, at: str, arguments: dict[str, Any]) -> Card:
    """The card of a model of this kind around a backbone: its methods, and how to build both again.

    Args:
        kind: the name under which `lf.create` builds such a model.
        backbone: the model that it is built around.
        at: where the backbone stands in it.
        arguments: what `lf.create` needs beside the backbone.
    """
    card = card_of(backbone)
    inner = {**card_json(backbone)["arguments"], "num_classes": 0} if card.backbone else {}
    return Card(
        backbone=kind if card.backbone else "",
        arguments={"backbone": card.backbone, "backbone_arguments": inner, **arguments},
        methods=card.methods,
        fused=card.fused,
        claims={f"{at}.{path}": name for path, name in card.claims.items()},
    )


def features_of(model: Any) -> Any:
    """The module of a detector or segmenter that gives its maps.

    Args:
        model: a model of `lf.tasks.detector` or `lf.tasks.segmenter`.
    """
    return model.backbone.features if hasattr(model, "backbone") else model.features


def with_features(model: nn.Module, features: nn.Module) -> nn.Module:
    """A copy of a detector or segmenter around the same weights, whose maps come from another module.

    Args:
        model: a model of `lf.tasks.detector` or `lf.tasks.segmenter`.
        features: the same maps computed in another way, such as compiled.

    >>> import leanformer as lf
    >>> model = lf.tasks.segmenter("fpn", lf.create("poolformer_s12"), 2)
    >>> with_features(model, torch.compile(features_of(model))).head.weight is model.head.weight
    True
    """
    new = share(model)
    new.set_submodule("backbone.features" if hasattr(model, "backbone") else "features", features)
    return new


def backbone_from(name: str, arguments: dict[str, Any] | None) -> nn.Module:
    """The backbone that a card names, with fresh weights."""
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        raise ValueError("give backbone as the name of a model, and backbone_arguments as its arguments by name")
    return from_card(Card(backbone=name, arguments=dict(arguments or {})))


def _build(
    backbone: str,
    backbone_arguments: dict[str, Any] | None = None,
    levels: Sequence[int] | None = None,
    norm: bool = True,
) -> nn.Module:
    return features(backbone_from(backbone, backbone_arguments), levels, norm=norm)


AROUND["features"] = _build


def padded(images: Tensor, multiple: int) -> Tensor:
    """Images with zeros on the right and below, so that both sides are multiples of a number.

    >>> padded(torch.zeros(1, 3, 30, 32), 16).shape
    torch.Size([1, 3, 32, 32])
    """
    down, right = -images.shape[2] % multiple, -images.shape[3] % multiple
    return F.pad(images, (0, right, 0, down)) if torch.compiler.is_exporting() or down or right else images


def random_images(features: Features) -> Tensor:
    """Two small images that need no padding, always the same, on the device and in the dtype of the weights."""
    size = (3 * features.multiple, 4 * features.multiple)
    chans = getattr(features.body, "in_chans", 3)
    images = torch.rand(2, chans, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return images.to(next(features.parameters()))


def count_of(classes: int | Sequence[str]) -> int:
    """How many classes there are, given their number or their names."""
    number = classes if isinstance(classes, int) else len(classes)
    if isinstance(classes, bool | str) or number < 1:
        raise ValueError(f"classes is how many there are, at least one, or their names; not {classes!r}")
    return number


def strides_of(body: Any) -> list[int]:
    """Strides in pixels of all maps that a backbone can give.

    Args:
        body: an adopted backbone.
    """
    if _staged(body):
        return [info["reduction"] for info in body.feature_info]
    patch = body.patch_embed.patch_size
    if patch[0] != patch[1] or patch[0] % 4:
        raise ValueError(f"the simple pyramid goes down to a quarter of a patch; patches of {patch} pixels have none")
    return [int(patch[0] * share) for share in SIMPLE]


def _channels(body: Any) -> list[int]:
    return [info["num_chs"] for info in body.feature_info] if _staged(body) else [body.embed_dim] * len(SIMPLE)


def _staged(body: Any) -> bool:
    """Whether a backbone has stages of its own; a GFNet has them or not."""
    return isinstance(body, STAGED) and (len(body.feature_info) > 1 or not isinstance(body, PLAIN))


def _chosen(levels: Sequence[int] | None, count: int) -> tuple[int, ...]:
    chosen = tuple(range(count)) if levels is None else tuple(levels) if isinstance(levels, Sequence) else levels
    known = isinstance(chosen, tuple) and all(isinstance(level, int) and 0 <= level < count for level in chosen)
    if not chosen or not known or list(chosen) != sorted(set(chosen)):
        raise ValueError(f"levels are from 0 to {count - 1} here, finest first, each once; not {chosen}")
    return chosen


def _norm(body: nn.Module, width: int, wanted: bool) -> nn.Module:
    """A new norm for the map of a stage: the kind that the blocks have in our MetaFormers, else a LayerNorm."""
    if not wanted:
        return nn.Identity()
    if isinstance(body, MetaFormer):
        config = body.config
        return make_norm(config.norm, width, "NCHW", config.norm_eps, config.norm_bias)
    return LayerNorm2d(width)


def _behead(body: Any, keep_norm: bool, keep_forks: bool) -> None:
    """Take off, in place, what only the classifier needs: no gradient would reach it."""
    if body.num_classes:
        body.reset_classifier(0)
    spare = ["head", "fc_norm", "attn_pool", *(() if keep_norm else ("norm",))]
    spare += ["out_norms"] if not keep_forks else []
    for name in spare:
        if isinstance(getattr(body, name, None), nn.ModuleList):
            setattr(body, name, nn.ModuleList(nn.Identity() for _ in getattr(body, name)))
        elif isinstance(getattr(body, name, None), nn.Module):
            setattr(body, name, nn.Identity())
