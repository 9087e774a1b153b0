"""Label maps on disk: an annotator looks at every training image once, and training cuts the maps as it cuts images.

    folder/values.npy    float16 (n, k, h, w)    the k highest logits of each place
    folder/classes.npy   int32   (n, k, h, w)    their classes
    folder/maps.json     classes in all, and of what

A map shows its whole image. The label of a patch is the softmax of the mean logits of its part of the crop, where
classes that are not among the k highest have logit 0.

n images, k classes kept, h x w places of a map, B batch, H x W the plane of patches, N = H·W, K classes.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.ops import roi_align
from torchvision.transforms import functional as pixels

from ..core import input_of, write_atomically
from .kinds import UNREADABLE


@dataclass
class Place:
    """Where training images come from: label, index, crop and flip of each, each (B,); the crop in shares of a side."""

    label: Tensor
    index: Tensor
    box: Tensor
    """Top, left, height and width, (B, 4)."""
    flip: Tensor

    @classmethod
    def of(cls, targets: Tensor) -> "Place":
        """Read from targets (B, 7): label, index, top, left, height, width, flip.

        >>> Place.of(torch.tensor([[3.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0]])).label
        tensor([3])
        """
        if targets.ndim != 2 or targets.shape[1] != 7:
            raise ValueError(
                f"labels from maps need targets (B, 7) that say where images come from, not {tuple(targets.shape)}; "
                "train on TokenLabelled data without mixup, cutmix and label smoothing"
            )
        label, index = targets[:, 0].long(), targets[:, 1].long()
        return cls(label, index, targets[:, 2:6], targets[:, 6] > 0.5)


class LabelMaps:
    """Label maps in a folder, read as they are needed.

    >>> LabelMaps("maps/").crops(Place.of(targets), (14, 14))  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        if not (self.folder / "maps.json").is_file():
            raise ValueError(f"{self.folder} holds no label maps; write them with train.write_label_maps")
        self.num_classes = int(json.loads((self.folder / "maps.json").read_text())["classes"])
        self.values = np.load(self.folder / "values.npy", mmap_mode="r")  # (n, k, h, w)
        self.classes = np.load(self.folder / "classes.npy", mmap_mode="r")
        if self.values.shape != self.classes.shape or self.values.ndim != 4:
            raise ValueError(f"{self.folder} is damaged: {self.values.shape} values for {self.classes.shape} classes")

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Maps of logits of these images, (B, K, h, w)."""
        rows = torch.as_tensor(indices).cpu().numpy()
        if len(rows) and rows.max() >= len(self):
            raise ValueError(f"{self.folder} has maps of {len(self)} images, not of image {rows.max()}")
        values = torch.from_numpy(self.values[rows].astype(np.float32))  # (B, k, h, w)
        classes = torch.from_numpy(self.classes[rows].astype(np.int64))
        maps = values.new_zeros(len(rows), self.num_classes, *values.shape[2:])
        return maps.scatter_(1, classes, values)

    def crops(self, place: Place, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Labels of the patches (B, N, K) and of the whole crop (B, K), on the places' device."""
        maps = self[place.index].to(place.box.device)
        return crop_labels(maps, place.box, place.flip, size)


def crop_labels(maps: Tensor, box: Tensor, flip: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Distributions of the H x W parts of a crop (B, N, K), and of the crop as a whole (B, K).

    >>> box, flip = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([False])
    >>> dense, whole = crop_labels(torch.zeros(1, 5, 4, 4), box, flip, (2, 2))
    >>> dense.shape, whole.shape
    (torch.Size([1, 4, 5]), torch.Size([1, 5]))
    """
    height, width = maps.shape[2:]
    top, left, tall, wide = (box * box.new_tensor([height, width, height, width])).unbind(1)  # (B,)
    number = torch.arange(len(maps), device=box.device, dtype=box.dtype)
    corners = torch.stack([number, left, top, left + wide, top + tall], dim=1)  # (B, 5)
    dense = roi_align(maps, corners, size, aligned=True)  # (B, K, H, W)
    dense = torch.where(flip[:, None, None, None], dense.flip(3), dense)
    whole = roi_align(maps, corners, (1, 1), aligned=True)  # (B, K, 1, 1)
    return dense.flatten(2).transpose(1, 2).softmax(-1), whole.flatten(1).softmax(-1)


@torch.no_grad()
def write_label_maps(
    annotator: nn.Module, data: Any, folder: str | os.PathLike[str], top: int = 5, batch_size: int = 64
) -> Path:
    """Label every image of a data set (whole, resized to the annotator's input) and write the maps to a folder.

    `annotator` is a `train.Annotator`, `data` what `train.open_data` gives. An image that cannot be read is counted as
    damaged; training takes another one in its place.

    >>> write_label_maps(Annotator(model), open_data("imagenet/"), "maps/")  # doctest: +SKIP
    """
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"{folder} exists; choose another folder for the label maps")
    folder.mkdir(parents=True)
    try:
        classes = _write_maps(annotator.eval(), Pictures(data), folder, top, batch_size)
    except BaseException:
        shutil.rmtree(folder)  # a part of the maps is of no use
        raise
    # written last: a folder with this file is whole
    about = json.dumps({"classes": classes, "images": len(data), "of": getattr(data, "name", "")})
    write_atomically(folder / "maps.json", lambda name: Path(name).write_text(about))
    return folder


def _write_maps(annotator: nn.Module, pictures: "Pictures", folder: Path, top: int, batch_size: int) -> int:
    """Write values and classes of all maps; returns how many classes there are."""
    config, device = input_of(annotator), next(annotator.parameters()).device
    values: Any = None
    classes: Any = None
    for start in range(0, len(pictures), batch_size):
        rows = range(start, min(start + batch_size, len(pictures)))
        batch = torch.stack([_whole(pictures.or_black(i), config) for i in rows]).to(device)
        maps = annotator(batch).float().permute(0, 3, 1, 2)  # (B, K, h, w)
        best = maps.topk(min(top, maps.shape[1]), dim=1)  # (B, k, h, w)
        if values is None:
            shape = (len(pictures), *best.values.shape[1:])
            values = np.lib.format.open_memmap(folder / "values.npy", "w+", np.float16, shape)
            classes = np.lib.format.open_memmap(folder / "classes.npy", "w+", np.int32, shape)
        values[rows.start : rows.stop] = best.values.cpu().numpy()
        classes[rows.start : rows.stop] = best.indices.cpu().numpy()
    values.flush()
    classes.flush()
    return int(maps.shape[1])


def _whole(picture: Image.Image, config: dict[str, Any]) -> Tensor:
    height, width = config["input_size"][1:]
    resized = picture.resize((width, height), Image.Resampling.BICUBIC)
    return pixels.normalize(pixels.to_tensor(resized), list(config["mean"]), list(config["std"]))  # (3, H, W)


class Pictures:
    """The images of a data set one by one as pictures, whether they are files or arrays."""

    def __init__(self, data: Any):
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if hasattr(self.data, "picture"):
            return self.data.picture(index)
        array = self.data.images[index].permute(1, 2, 0).cpu().numpy()  # (H, W, 3)
        return Image.fromarray(array), int(self.data.labels[index])

    def or_black(self, index: int) -> Image.Image:
        """The picture of an image; a black one where it cannot be read, which is noted."""
        try:
            return self[index][0]
        except UNREADABLE as error:
            self.data.damage.add(self.filename(index), str(error))
            return Image.new("RGB", (64, 64))

    def filename(self, index: int) -> str:
        """A name of the image for reports."""
        return self.data.filename(index) if hasattr(self.data, "filename") else f"image {index}"
