"""The view under which a model is evaluated, served, calibrated and shown: resize, cut out the middle, normalise.

    scale = max(S_h / h, S_w / w) / crop_pct          the middle S_h x S_w pixels of the image resized by it

A picture goes through timm's transform, a batch of pixels through two matrix products on its device; both round to
whole pixels alike and agree to about one grey level. h x w the image, S_h x S_w the model's input.
"""

from typing import Any

import torch
from PIL import Image
from timm.data import create_transform
from torch import Tensor

from .augment import KERNELS, resized

KEYS = ("input_size", "interpolation", "mean", "std", "crop_pct")


class EvaluationView:
    """Images as a model sees them in evaluation.

    Args:
        config: What `core.input_of(model)` gives; size, crop, interpolation and normalisation are read from it.

    >>> view = EvaluationView({"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 0.9})
    >>> view(Image.new("RGB", (60, 40))).shape, view(torch.zeros(2, 3, 40, 60, dtype=torch.uint8)).shape
    (torch.Size([3, 32, 32]), torch.Size([2, 3, 32, 32]))
    """

    def __init__(self, config: dict[str, Any]):
        self.settings: dict[str, Any] = {key: config[key] for key in KEYS if key in config}
        for key in ("input_size", "mean", "std"):
            self.settings[key] = tuple(config[key])
        self.channels, *size = self.settings["input_size"]
        self.size: tuple[int, int] = tuple(size)
        self.picture: Any = create_transform(**self.settings, is_training=False)

    def __call__(self, images: Image.Image | Tensor) -> Tensor:
        """One picture → (C, H, W), or uint8 images (B, C, h, w) → (B, C, H, W) on their device."""
        if isinstance(images, Image.Image):
            return self.picture(images.convert("RGB" if self.channels == 3 else "L"))
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(f"images must be uint8 (B, C, H, W), not {images.dtype} {tuple(images.shape)}")
        return self._batch(images)

    @property
    def kernel(self) -> str:
        """How pixels are interpolated: bicubic or bilinear."""
        # asked of timm, which until 1.0.30 resized to what is not square bilinearly, whatever the model's card says
        asked = getattr(self.picture.transforms[0].interpolation, "value", "")
        return asked if asked in KERNELS else "bicubic"

    def box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """What the model sees of an image of this size: top, left, height and width, in its pixels.

        The resized image and its middle are rounded to whole pixels, as timm rounds them.
        """
        crop = self.settings.get("crop_pct") or 0.875
        tall, wide = (int(side / crop) for side in self.size)
        if tall == wide:
            full = int(tall * height / min(height, width)), int(wide * width / min(height, width))
        else:
            ratio = min(height / tall, width / wide)
            full = round(height / ratio), round(width / ratio)
        scale = height / full[0], width / full[1]
        top, left = (round((whole - side) / 2) * step for whole, side, step in zip(full, self.size, scale))
        return top, left, self.size[0] * scale[0], self.size[1] * scale[1]

    def _batch(self, images: Tensor) -> Tensor:
        box = torch.tensor(self.box(*images.shape[2:]), device=images.device)  # (4,)
        mean, std = self.settings["mean"], self.settings["std"]
        return resized(images.float() / 255, box.expand(len(images), 4), self.size, self.kernel, mean, std)
