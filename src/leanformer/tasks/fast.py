"""The fast form of a detector: its backbone optimised for pictures of one size, the rest as it is.

    images → optimised features, as one tensor (B, sum of C_i H_i W_i) → maps → FPN, heads, suppression in plain torch

`lf.optimize` makes models with one answer fast; a pyramid of maps is joined into one tensor for it and parted again.

B batch, C_i channels of a map, H_i x W_i its size.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..core import card_of, input_of, set_card
from .pyramid import Features, features_of, with_features


class Joined(nn.Module):
    """The maps of a backbone as one tensor (B, N).

    >>> import leanformer as lf
    >>> Joined(lf.features(lf.create("poolformer_s12"), levels=(2, 3)))(torch.zeros(1, 3, 32, 64)).shape
    torch.Size([1, 3584])
    """

    def __init__(self, features: Features):
        super().__init__()
        self.features = features
        self.pretrained_cfg = self.default_cfg = features.pretrained_cfg

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([x.flatten(1) for x in self.features(images)], 1)


class FastFeatures(nn.Module):
    """The maps of a backbone, computed by its optimised form; in the dtype that the images have."""

    def __init__(self, fast: nn.Module, features: Features):
        super().__init__()
        self.fast = fast
        self.strides, self.channels, self.multiple = features.strides, features.channels, features.multiple

    def forward(self, images: Tensor) -> list[Tensor]:
        height, width = (side + -side % self.multiple for side in images.shape[2:])
        sizes = [(width_, height // s, width // s) for width_, s in zip(self.channels, self.strides, strict=True)]
        joined = self.fast(images).to(images.dtype)
        parts = joined.split([c * h * w for c, h, w in sizes], 1)
        return [part.unflatten(1, size) for part, size in zip(parts, sizes, strict=True)]


@dataclasses.dataclass(frozen=True)
class PlainForm:
    """Gives the model that a fast one was made from: what is saved, exported and described."""

    model: nn.Module

    def __call__(self) -> nn.Module:
        return self.model


def optimize_features(model: nn.Module, optimize: Callable[..., Any], device: Any, **how: Any) -> nn.Module:
    """A copy of a fused detector on a device, its backbone optimised there.

    Args:
        model: a detector.
        optimize: `lf.optimize`.
        device: where it is to run; by default the GPU if there is one.
        **how: what `lf.optimize` takes; `size` is that of pictures as the network sees them, by default the model's.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    plain, model = PlainForm(copy.deepcopy(model).cpu()), copy.deepcopy(model).to(device).eval()
    features, transform = features_of(model), cast(Any, model).transform
    joined = set_card(Joined(features), card_of(model))
    channels, *sides = how.get("size") or input_of(model)["input_size"]
    how["size"] = (channels, *(side + -side % transform.size_divisible for side in sides))  # as it is padded
    fast = optimize(joined, device=device, **how)
    new = with_features(model, FastFeatures(fast, features))
    new.plain_form, new.choice = plain, fast.choice  # type: ignore[assignment]
    return new.eval().requires_grad_(False)  # maps that were made in inference mode reach no gradient
