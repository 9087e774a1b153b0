"""A few images of a data set as a model sees them when it is evaluated: for calibration, comparison and int8 ranges."""

import torch
from torch import Tensor, nn

from ..core import input_of
from .sources import UNREADABLE, Arrays, Files, Source, open_data
from .view import EvaluationView


def sample_images(model: nn.Module, data: Source, images: int = 512, *, split: str = "train", seed: int = 0) -> Tensor:
    """`images` random ones of the data set, or all where there are fewer, as the model sees them: (n, C, H, W).

    Args:
        model: The model whose input size, crop and normalisation count.
        data: A folder of pictures, a pack or arrays, with labels or without.
        images: How many.
        split: Which part of the data.
        seed: Which ones.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=5)
    >>> sample_images(model, torch.zeros(6, 3, 32, 32, dtype=torch.uint8), images=4).shape
    torch.Size([4, 3, 32, 32])
    """
    opened = open_data(data, split)
    if not isinstance(opened, Arrays | Files):
        raise ValueError(f"{opened.name} is a stream, of which no random images can be taken; give a folder or a pack")
    view = EvaluationView(input_of(model))
    order = torch.randperm(len(opened), generator=torch.Generator().manual_seed(seed))[:images]
    if isinstance(opened, Arrays):
        return torch.cat([view(opened.images[chosen.to(opened.images.device)]) for chosen in order.split(64)])
    seen: list[Tensor] = []
    for index in order.tolist():
        try:
            picture, _ = opened.picture(index)
        except UNREADABLE as error:
            opened.damage.add(opened.filename(index), str(error))
            continue
        seen.append(view(picture))
    if not seen:
        raise ValueError(f"none of the {len(order)} images taken of {opened.name} can be read")
    return torch.stack(seen)
