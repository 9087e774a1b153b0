"""A few hundred images of a data set as the model sees them when it is evaluated: what calibration needs."""

import torch
from timm.data import create_transform
from torch import Tensor, nn

from ..core import input_of
from .augment import evaluation_view
from .sources import UNREADABLE, Arrays, Files, Source, open_data


def sample_images(model: nn.Module, data: Source, images: int = 512, *, split: str = "train", seed: int = 0) -> Tensor:
    """`images` random ones of the data set, cropped and normalised for the model: (n, C, H, W).

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=5)
    >>> pixels, labels = torch.zeros(6, 3, 32, 32, dtype=torch.uint8), torch.arange(6) % 5
    >>> sample_images(model, (pixels, labels), images=4).shape
    torch.Size([4, 3, 32, 32])
    """
    opened = open_data(data, split)
    if not isinstance(opened, Arrays | Files):
        raise ValueError(f"{opened.name} is a stream, of which no random images can be taken; give a folder or a pack")
    config = input_of(model)
    order = torch.randperm(len(opened), generator=torch.Generator().manual_seed(seed))[:images]
    if isinstance(opened, Arrays):
        size, mean, std = (tuple(config[key]) for key in ("input_size", "mean", "std"))
        parts = [opened.images[chosen.to(opened.images.device)] for chosen in order.split(64)]
        return torch.cat(
            [evaluation_view(p, size[1:], config["crop_pct"], config["interpolation"], mean, std) for p in parts]
        )
    transform = create_transform(
        config["input_size"], is_training=False, interpolation=config["interpolation"], mean=config["mean"],
        std=config["std"], crop_pct=config["crop_pct"],
    )  # fmt: skip
    pictures: list[Tensor] = []
    for index in order.tolist():
        try:
            pictures.append(transform(opened.picture(index)[0]))  # type: ignore[operator]
        except UNREADABLE as error:
            opened.damage.add(opened.filename(index), str(error))
    return torch.stack(pictures)
