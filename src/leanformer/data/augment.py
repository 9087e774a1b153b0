"""Cropping, resizing, colours, RandAugment and erasing of whole batches, on the device where the images lie.

A crop that is resized is a linear map of rows and one of columns, so that a batch costs two batched matrix products:

    out = R_y · image · R_xᵀ            R[i, j] = k((j - c_i) / s) / Σ_j …,   c_i centre of output pixel i in the source

with the cubic (Keys, a = -1/2) or triangle kernel k, stretched by s where the image shrinks: the filter of Pillow.
B batch, C channels, H x W source, S x S output.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .draws import uniforms
from .options import Augmentation
from .rand_augment import RandAugment, constant

TRIES = 10
DRAWS = 2 * TRIES + 12


def cubic(x: Tensor) -> Tensor:
    """Keys' cubic convolution kernel with a = -1/2, as Pillow's bicubic."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def triangle(x: Tensor) -> Tensor:
    """The kernel of bilinear interpolation."""
    return (1 - x.abs()).clamp_min(0)


KERNELS = {"bicubic": cubic, "bilinear": triangle}


def resampler(start: Tensor, length: Tensor, source: int, size: int, interpolation: str, flip: Tensor | None) -> Tensor:
    """Rows of weights that cut [start, start + length) out of `source` pixels and resize it: (B, size, source)."""
    out = torch.arange(size, device=start.device, dtype=torch.float32) + 0.5  # (S,)
    if flip is not None:
        out = torch.where(flip[:, None], size - out, out)  # (B, S)
    step = length[:, None] / size  # (B, 1)
    centre = start[:, None] + out * step  # (B, S), in pixel edges
    pixels = torch.arange(source, device=start.device, dtype=torch.float32) + 0.5  # (H,)
    distance = (pixels - centre[..., None]) / step.clamp_min(1.0)[..., None]  # (B, S, H)
    weights = KERNELS[interpolation](distance)
    return weights / weights.sum(-1, keepdim=True)  # (B, S, H)


def crop_resize(
    images: Tensor, box: Tensor, size: tuple[int, int], interpolation: str = "bicubic", flip: Tensor | None = None
) -> Tensor:
    """Cut a box (top, left, height, width) out of each image and resize it: (B, C, H, W) → (B, C, S, S).

    >>> crop_resize(torch.rand(2, 3, 64, 64), torch.tensor([[0.0, 0.0, 64.0, 64.0]] * 2), (32, 32)).shape
    torch.Size([2, 3, 32, 32])
    """
    top, left, height, width = box.unbind(1)
    rows = resampler(top, height, images.shape[2], size[0], interpolation, None)  # (B, S, H)
    columns = resampler(left, width, images.shape[3], size[1], interpolation, flip)  # (B, S, W)
    rows, columns = rows.to(images.dtype), columns.to(images.dtype)
    batch, chans, high, wide = images.shape
    lines = images.transpose(1, 2).reshape(batch, high * chans, wide)  # (B, H C, W): one product for all channels
    narrow = (lines @ columns.transpose(1, 2)).view(batch, high, chans * size[1])  # (B, H, C S)
    return (rows @ narrow).view(batch, size[0], chans, size[1]).transpose(1, 2)  # (B, C, S, S)


def random_boxes(
    draws: Tensor, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Inception-style crops: ten tries each, then the middle. draws (B, 2·TRIES + 2) → boxes (B, 4)."""
    lowest, highest = math.log(ratio[0]), math.log(ratio[1])
    area = height * width * (scale[0] + (scale[1] - scale[0]) * draws[:, :TRIES])  # (B, tries)
    aspect = (lowest + (highest - lowest) * draws[:, TRIES : 2 * TRIES]).exp()
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()  # (B, tries)
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.float().argmax(1, keepdim=True)  # (B, 1): the first that fits
    none = ~fits.any(1)
    w, h = w.gather(1, first)[:, 0], h.gather(1, first)[:, 0]  # (B,)
    w = torch.where(none, torch.full_like(w, min(width, round(height * ratio[1]))), w)
    h = torch.where(none, torch.full_like(h, min(height, round(width / ratio[0]))), h)
    at = torch.where(none[:, None], torch.full_like(draws[:, -2:], 0.5), draws[:, -2:])
    top, left = (at[:, 0] * (height - h + 1)).floor(), (at[:, 1] * (width - w + 1)).floor()
    return torch.stack([top.clamp_max(height), left.clamp_max(width), h, w], dim=1)  # (B, 4)


def jitter(images: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast and saturation, each a blend by its own factor; images in [0, 1], factors (B, 3)."""
    brightness, contrast, saturation = (f[:, None, None, None] for f in factors.unbind(1))
    images = (images * brightness).clamp(0, 1)
    grey = _grey(images)  # (B, 1, H, W)
    images = torch.lerp(grey.mean((2, 3), keepdim=True), images, contrast).clamp(0, 1)
    return torch.lerp(_grey(images), images, saturation).clamp(0, 1)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    return (images * constant((0.299, 0.587, 0.114), images.device)).sum(1, keepdim=True)


def erase(images: Tensor, draws: Tensor, probability: float) -> Tensor:
    """Random erasing with noise: of each image, with the probability, 2 to 33% of the area. draws (B, 5)."""
    _, _, height, width = images.shape
    area = height * width * (0.02 + (1 / 3 - 0.02) * draws[:, 1])  # (B,)
    aspect = ((2 * draws[:, 2] - 1) * 1.2039728).exp()  # log-uniform between 0.3 and 1/0.3
    h = (area * aspect).sqrt().round().clamp_max(height)
    w = (area / aspect).sqrt().round().clamp_max(width)
    top, left = (draws[:, 3] * (height - h + 1)).floor(), (draws[:, 4] * (width - w + 1)).floor()
    y = torch.arange(height, device=images.device)  # (H,)
    x = torch.arange(width, device=images.device)  # (W,)
    rows = (y >= top[:, None]) & (y < (top + h)[:, None])  # (B, H)
    columns = (x >= left[:, None]) & (x < (left + w)[:, None])  # (B, W)
    chosen = (draws[:, 0] < probability)[:, None, None] & rows[:, :, None] & columns[:, None]  # (B, H, W)
    return torch.where(chosen[:, None], torch.randn_like(images), images)


@dataclass(frozen=True)
class Augment:
    """A recipe's augmentation of uint8 batches, up to normalisation and erasing; mixing comes after it.

    With `half`, images are cut and resized in float16, which is finer than the bfloat16 that a model then sees.

    >>> import leanformer as lf
    >>> augment = Augment(lf.train.Recipe(), (32, 32), (0.5,) * 3, (0.5,) * 3)
    >>> augment(torch.zeros(4, 3, 64, 64, dtype=torch.uint8), torch.arange(4), key=0).shape
    torch.Size([4, 3, 32, 32])
    """

    recipe: Augmentation
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    half: bool = False

    def __post_init__(self) -> None:
        self._operations()

    def __call__(self, images: Tensor, positions: Tensor, key: int | Tensor) -> Tensor:
        recipe = self.recipe
        draws = uniforms(key, positions, DRAWS)  # (B, DRAWS)
        crop, rest = draws[:, : 2 * TRIES + 2], draws[:, 2 * TRIES + 2 :]
        box = random_boxes(crop, images.shape[2], images.shape[3], recipe.crop_scale, recipe.crop_ratio)
        x, flip = images.float(), rest[:, 0] < recipe.flip
        operations = self._operations()
        if operations is not None:  # takes the place of the colours, as in timm
            x = crop_resize(x, box, self.size, _kernel(recipe.interpolation), flip).clamp(0, 255).round()
            assert isinstance(key, int)
            x = normalise(operations(x, positions, key) / 255, self.mean, self.std)
        else:
            x = x / 255
            if recipe.color_jitter:
                x = jitter(x, 1 + recipe.color_jitter * (2 * rest[:, 1:4] - 1))
            x = x.half() if self.half else x
            x = resized(x, box, self.size, recipe.interpolation, self.mean, self.std, flip)
        return erase(x, rest[:, 4:9], recipe.erasing) if recipe.erasing else x

    def _operations(self) -> RandAugment | None:
        if self.recipe.auto_augment is None:
            return None
        fill = tuple(float(min(255, round(255 * m))) for m in self.mean)
        return RandAugment(self.recipe.auto_augment, fill, _kernel(self.recipe.interpolation) == "bicubic")


def _kernel(interpolation: str) -> str:
    return interpolation if interpolation in KERNELS else "bicubic"


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(x - mean) / std by channel."""
    return (images - constant(tuple(mean), images.device)) / constant(tuple(std), images.device)


def resized(
    images: Tensor,
    box: Tensor,
    size: tuple[int, int],
    interpolation: str,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    flip: Tensor | None = None,
) -> Tensor:
    """Crop, resize and normalise images in [0, 1]: (B, C, H, W) → (B, C, S, S).

    Weights of a resampling add up to one, so it may come after the normalisation, which then works on fewer pixels
    where images grow. What overshoots black and white is cut off as usual.
    """
    x = crop_resize(normalise(images, mean, std), box, size, _kernel(interpolation), flip)
    black, white = (tuple((level - m) / s for m, s in zip(mean, std)) for level in (0.0, 1.0))
    return x.clamp_(constant(black, x.device), constant(white, x.device))
