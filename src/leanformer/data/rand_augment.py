"""RandAugment for whole batches on the device: to every image its own operations and magnitudes, as timm's on pictures.

    eight operations map grey levels     T[image, channel, level], one table look-up for all of them
    five move pixels                     one affine resampling for all of them
    colour and sharpness                 f · image + (1 − f) · (grey or smooth image)

An image that an operation is not meant for gets its identity: the identical table, the unit matrix, f = 1.
B batch, C channels, H x W pixels, images of whole grey levels 0 … 255 as floats.
"""

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from timm.data.auto_augment import rand_augment_transform
from torch import Tensor

from .draws import key_of, uniforms

OPERATIONS = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast",
    "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel",
)  # fmt: skip
LEVELS = 256


@dataclass(frozen=True)
class RandAugment:
    """A policy as timm writes it, such as rand-m9-mstd0.5-inc1; `fill` colours what is moved into the image.

    >>> RandAugment("rand-m9-mstd0.5-inc1")(torch.zeros(2, 3, 8, 8), torch.arange(2), key=0).shape
    torch.Size([2, 3, 8, 8])
    """

    policy: str
    fill: tuple[float, ...] = (128.0, 128.0, 128.0)
    bicubic: bool = True

    def __post_init__(self) -> None:
        known = self.policy.startswith("rand-")
        chosen = rand_augment_transform(self.policy, {}) if known else None
        if chosen is None or {op.name.removesuffix("Increasing") for op in chosen.ops} != set(OPERATIONS):
            raise ValueError(
                f"auto_augment={self.policy} is not made for images kept as arrays, only RandAugment with all its "
                "operations is: write rand-m9-mstd0.5-inc1 or like it, none for no such augmentation, or give a folder"
            )

    def __call__(self, images: Tensor, positions: Tensor, key: int) -> Tensor:
        chosen = rand_augment_transform(self.policy, {})
        op = chosen.ops[0]
        draws = uniforms(key_of(key, "rand_augment"), positions, 5 * chosen.num_layers)
        for which, skip, noise, sign, _ in (part.unbind(1) for part in draws.split(5, dim=1)):
            index = torch.where(skip <= op.prob, (which * len(OPERATIONS)).long(), -1)  # (B,), -1: none
            if op.magnitude_std == math.inf:
                magnitude = noise * op.magnitude
            else:
                magnitude = op.magnitude + op.magnitude_std * torch.special.ndtri(noise.clamp(1e-6, 1 - 1e-6))
            level = magnitude.clamp(0, op.magnitude_max or 10) / 10  # (B,)
            increasing = any(op.name.endswith("Increasing") for op in chosen.ops)
            images = one_layer(images, index, level, sign < 0.5, increasing, self.fill, self.bicubic)
        return images


def one_layer(
    images: Tensor,
    index: Tensor,
    level: Tensor,
    negative: Tensor,
    increasing: bool = True,
    fill: tuple[float, ...] = (128.0, 128.0, 128.0),
    bicubic: bool = True,
) -> Tensor:
    """To each image its operation, an index into OPERATIONS (-1: none), at its level 0 … 1.

    >>> invert = torch.tensor([OPERATIONS.index("Invert")])
    >>> one_layer(torch.zeros(1, 3, 2, 2), invert, torch.ones(1), torch.zeros(1, dtype=torch.bool)).unique()
    tensor([255.])
    """
    is_ = {name: index == i for i, name in enumerate(OPERATIONS)}
    signed = torch.where(negative, -level, level)
    factor = (1 + 0.9 * signed).clamp_min(0.1) if increasing else 1.8 * level + 0.1  # (B,)
    images = _look_up(images, _tables(images, is_, level, factor, increasing))
    images = _blend(_grey(images).expand_as(images), images, torch.where(is_["Color"], factor, 1.0))
    images = _blend(_smooth(images), images, torch.where(is_["Sharpness"], factor, 1.0))
    return _move(images, is_, signed, fill, bicubic)


def _tables(images: Tensor, is_: dict[str, Tensor], level: Tensor, factor: Tensor, increasing: bool) -> Tensor:
    """What becomes of each grey level: (B, C, 256)."""
    v = torch.arange(LEVELS, device=images.device, dtype=torch.float32)  # (256,)
    level, factor = level[:, None, None], factor[:, None, None]
    kept, bound = (level * 4).floor(), (level * 256).floor().clamp_max(256)
    kept, bound = (4 - kept, 256 - bound) if increasing else (kept, bound)
    block = 2 ** (8 - kept.clamp_min(1))  # without a bit nothing would be left
    mean = (_grey(images).mean((1, 2, 3)) + 0.5).floor()[:, None, None]
    counts = _histogram(images)  # (B, C, 256)
    found = {
        "AutoContrast": _stretched(counts, v),
        "Equalize": _equalised(counts, v),
        "Invert": 255 - v,
        "Posterize": (v / block).floor() * block,
        "Solarize": torch.where(v < bound, v, 255 - v),
        "SolarizeAdd": torch.where(v < 128, v + (level * 110).floor().clamp_max(128), v),
        "Contrast": mean + factor * (v - mean),
        "Brightness": factor * v,
    }
    table = v.expand_as(counts)
    for name, other in found.items():
        table = torch.where(is_[name][:, None, None], other, table)
    return table.clamp(0, 255).floor()


def _histogram(images: Tensor) -> Tensor:
    flat = images.flatten(2).long()  # (B, C, H·W)
    zeros = torch.zeros(*flat.shape[:2], LEVELS, device=images.device)
    return zeros.scatter_add_(2, flat, torch.ones_like(flat, dtype=zeros.dtype))  # (B, C, 256)


def _stretched(counts: Tensor, v: Tensor) -> Tensor:
    """From the darkest to the brightest level of a channel to 0 … 255."""
    there = counts > 0
    lowest = torch.where(there, v, 255.0).amin(2, keepdim=True)
    highest = torch.where(there, v, 0.0).amax(2, keepdim=True)
    scale = 255 / (highest - lowest).clamp_min(1)
    return torch.where(highest > lowest, v * scale - lowest * scale, v)


def _equalised(counts: Tensor, v: Tensor) -> Tensor:
    """Levels by the share of pixels below them, in Pillow's whole numbers."""
    last = torch.where(counts > 0, v, -1.0).argmax(2, keepdim=True)
    step = ((counts.sum(2, keepdim=True) - counts.gather(2, last)) / 255).floor()  # (B, C, 1)
    below = counts.cumsum(2) - counts
    return torch.where(step > 0, ((step / 2).floor() + below).div(step.clamp_min(1)).floor(), v)


def _look_up(images: Tensor, table: Tensor) -> Tensor:
    return table.gather(2, images.flatten(2).long()).view_as(images)


def _grey(images: Tensor) -> Tensor:
    """Luma in whole levels, (B, 1, H, W)."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True).round()
    red, green, blue = images.unbind(1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 32768) / 65536).floor()[:, None]


def _smooth(images: Tensor) -> Tensor:
    """A mean over 3 x 3 pixels, the middle counted five times; the border stays."""
    if min(images.shape[2:]) < 3:  # all of it is border
        return images
    inner = F.avg_pool2d(images, 3, stride=1) * 9 + 4 * images[:, :, 1:-1, 1:-1]
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = (inner / 13 + 0.5).floor()
    return smooth


def _blend(other: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    factor = factor[:, None, None, None]
    return torch.where(factor == 1, images, (other + factor * (images - other)).clamp(0, 255).floor())


def _move(images: Tensor, is_: dict[str, Tensor], signed: Tensor, fill: tuple[float, ...], bicubic: bool) -> Tensor:
    height, width = images.shape[2:]
    from_x, from_y = _sources(height, width, is_, signed)  # (B, H, W)
    grid = torch.stack([2 * from_x / width - 1, 2 * from_y / height - 1], dim=-1)  # (B, H, W, 2)
    mode = "bicubic" if bicubic else "bilinear"
    moved = F.grid_sample(images, grid, mode=mode, padding_mode="border", align_corners=False)
    outside = (from_x < 0) | (from_x >= width) | (from_y < 0) | (from_y >= height)
    return torch.where(outside[:, None], constant(fill, images.device), moved.clamp(0, 255).round())


def _sources(height: int, width: int, is_: dict[str, Tensor], signed: Tensor) -> tuple[Tensor, Tensor]:
    """Where each pixel comes from: rotated by 30°, sheared by 0.3 or shifted by 45% of the image at level 1."""
    signed = signed[:, None, None]  # (B, 1, 1)
    of = {name: torch.where(chosen[:, None, None], signed, 0.0) for name, chosen in is_.items()}
    x = torch.arange(width, device=signed.device) + 0.5  # (W,)
    y = (torch.arange(height, device=signed.device) + 0.5)[:, None]  # (H, 1)
    angle = -math.radians(30) * of["Rotate"]
    cos, sin = angle.cos(), angle.sin()
    u, w = x - width / 2, y - height / 2
    turned = is_["Rotate"][:, None, None]
    from_x = x + 0.3 * of["ShearX"] * y + 0.45 * width * of["TranslateXRel"]
    from_y = y + 0.3 * of["ShearY"] * x + 0.45 * height * of["TranslateYRel"]
    return (
        torch.where(turned, cos * u + sin * w + width / 2, from_x),
        torch.where(turned, -sin * u + cos * w + height / 2, from_y),
    )


def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Values by channel on a device, (C, 1, 1); kept, since a copy to a device would have it waited for."""
    if torch.compiler.is_compiling():  # written into the kernels that use them
        return torch.stack([torch.full((), value, device=device) for value in values])[:, None, None]
    return _kept(values, device)


@functools.cache
def _kept(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)[:, None, None]
