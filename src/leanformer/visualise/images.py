"""Images in and out: whatever a user has becomes what the model sees, and that becomes a picture again.

B images, H x W pixels.
"""

import os
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn
from torchvision.transforms.functional import to_pil_image

from ..core import input_of
from ..data.kinds import UNREADABLE
from ..data.view import EvaluationView

File = str | os.PathLike[str] | Image.Image
Picture = File | Tensor


def as_batch(model: nn.Module, images: Picture | Sequence[Picture]) -> Tensor:
    """Images as the model sees them: (B, 3, H, W) of its size and normalisation, on its device, in its dtype.

    Files, PIL images and uint8 tensors are resized, cropped and normalised as the model was evaluated; tensors of
    floats are taken to be so already. One image or several, tensors with or without a batch axis.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2)
    >>> as_batch(model, Image.new("RGB", (50, 40))).shape
    torch.Size([1, 3, 32, 32])
    """
    several = list(images) if isinstance(images, Sequence) and not isinstance(images, str) else [images]
    if not several:
        raise ValueError("give at least one image")
    batch = torch.cat([_seen(model, image) for image in several])  # (B, 3, H, W)
    reference = next(model.parameters())
    return batch.to(reference.device, reference.dtype)


def upright(image: File) -> Image.Image:
    """A picture, decoded and turned as its camera says, as `predict` and `serve` see it.

    Args:
        image: A file, or a picture of Pillow.

    Raises:
        ValueError: The file cannot be read as a picture.
    """
    if isinstance(image, Image.Image):
        return ImageOps.exif_transpose(image)
    try:
        with Image.open(image) as picture:
            return ImageOps.exif_transpose(picture)
    except UNREADABLE as error:
        raise ValueError(f"cannot read the image {image}: {error}") from error


def pictures(model: nn.Module, batch: Tensor) -> np.ndarray:
    """What the model saw, for people: (B, 3, H, W) → (B, H, W, 3) between 0 and 1."""
    config = input_of(model)
    mean, std = (torch.tensor(config[key]).view(-1, 1, 1) for key in ("mean", "std"))
    shown = (batch.detach().float().cpu() * std + mean).clamp(0, 1).permute(0, 2, 3, 1)  # (B, H, W, C)
    return shown.expand(-1, -1, -1, 3).numpy()


def enlarged(maps: Tensor, size: tuple[int, int], mode: str = "bilinear") -> np.ndarray:
    """Maps (B, h, w) over the patches as maps (B, H, W) over the pixels."""
    wide = maps.detach().float().cpu()[:, None]
    smooth = {} if mode == "nearest" else {"align_corners": False}
    return F.interpolate(wide, size=size, mode=mode, **smooth)[:, 0].numpy()


def where(plane: Tensor, most: int = 3) -> str:
    """In words, where on a plane (h, w) of amounts the most of them lies, by ninths of the image.

    >>> where(torch.eye(9)[:3, :3] * 1.0)
    'top left 33%, centre 33%, bottom right 33%'
    """
    total = plane.sum().item()
    if not total > 0:
        return "nowhere"
    height, width = plane.shape
    rows, columns = ([side * i // 3 for i in range(4)] for side in (height, width))
    shares = {
        _ninth(i, j): plane[rows[i] : rows[i + 1], columns[j] : columns[j + 1]].sum().item() / total
        for i in range(3)
        for j in range(3)
    }
    best = sorted(shares, key=lambda name: -shares[name])[:most]
    return ", ".join(f"{name} {shares[name]:.0%}" for name in best)


def named(model: nn.Module) -> str:
    """What a model is called in titles: its backbone and methods.

    >>> named(nn.Linear(1, 1))
    'Linear'
    """
    card = getattr(model, "card", None)
    if card is None:
        return type(model).__name__
    return " + ".join([card.backbone, *(method.name for method in card.methods)]) + (", fused" if card.fused else "")


def _ninth(row: int, column: int) -> str:
    words = " ".join(filter(None, (("top", "", "bottom")[row], ("left", "", "right")[column])))
    return words or "centre"


def _seen(model: nn.Module, image: Picture) -> Tensor:
    config = input_of(model)
    size = tuple(config["input_size"])
    if isinstance(image, Tensor):
        batch = image if image.ndim == 4 else image[None]
        if batch.dtype == torch.uint8:
            return torch.cat([_seen(model, to_pil_image(each.cpu())) for each in batch])  # as the same file would be
        if batch.ndim != 4 or batch.shape[1] != size[0]:
            raise ValueError(f"an image tensor has the shape ([B,] {size[0]}, H, W), not {tuple(image.shape)}")
        return batch
    return EvaluationView(config)(upright(image))[None]
