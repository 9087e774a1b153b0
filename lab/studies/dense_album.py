"""Scenes that are decoded once for all processes and kept as tensors, on the host and on devices.

    files → photos, decoded in parts by whichever process is free → one file a part, mapped into memory by all

Pictures that were made smaller to travel (`dense_pack`) are brought back to the size of their maps.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leanformer.data import Scenes, Target
from leanformer.data.draws import key_of
from leanformer.data.kinds import UNREADABLE

from .file_lock import file_lock

THREADS = 4
"""That decode pictures."""
TOGETHER = 256
"""Pictures that a process decodes before it looks for others."""


@dataclass(frozen=True, eq=False)
class Photo:
    """A picture (3, H, W) of bytes, its target, and the file that it comes from."""

    path: str
    image: Tensor
    target: Target


class Album(list[Photo]):
    """Photos in memory, and copies of them on devices: pictures, masks and label maps; boxes stay on the host."""

    def __init__(self, photos: Sequence[Photo]):
        super().__init__(photos)
        self.copies: dict[torch.device, Album] = {}
        self.truth: dict[tuple[int, bool], list[dict[str, Any]]] = {}
        """What is in a picture as COCO writes it down, with masks or without, of those that were judged."""

    def on(self, device: torch.device) -> "Album":
        """The photos with their pixels on a device, moved there at the first call.

        Args:
            device: where batches are wanted.
        """
        if device.type == "cpu":
            return self
        if device not in self.copies:
            self.copies[device] = Album([_moved(photo, device) for photo in self])
        return self.copies[device]


def _moved(photo: Photo, device: torch.device) -> Photo:
    masks, label_map = (None if x is None else x.to(device) for x in (photo.target.masks, photo.target.label_map))
    return replace(photo, image=photo.image.to(device), target=replace(photo.target, masks=masks, label_map=label_map))


def in_memory(scenes: Scenes, most: int | None = None, folder: Path | None = None) -> Scenes:
    """The same scenes, decoded; pictures that cannot be read are left out and counted.

    Args:
        scenes: scenes in files.
        most: only so many, spread evenly over all of them.
        folder: where the first process leaves what it decoded for the others.
    """
    count = len(scenes) if most is None else min(most, len(scenes))
    chosen = [index * len(scenes) // count for index in range(count)]
    parts = [chosen[first : first + TOGETHER] for first in range(0, count, TOGETHER)]
    photos = [photo for part in _in_parts(scenes, parts, folder) for photo in part]
    album = Album([photo for photo in photos if photo.path])
    left_out = scenes.left_out + Counter({"pictures that cannot be read were left out": count - len(album)})
    return Scenes(album, _as_picture, scenes.classes, scenes.name, scenes.has, +left_out)


def _in_parts(scenes: Scenes, parts: Sequence[list[int]], folder: Path | None) -> Iterator[list[Photo]]:
    """Photos part by part; with a folder, processes that begin together share the work."""
    if folder is None:
        yield from (_decoded(scenes, part) for part in parts)
        return
    words = [key_of(scenes.name, str(sorted(scenes.has)), *map(scenes.filename, part)) % 2**64 for part in parts]
    for wait in (False, True):  # first what no other process is at
        for word, part in zip(words, parts):
            with file_lock(folder / f"{word:016x}", wait) as mine:
                path = folder / f"{word:016x}" / "photos.pt"
                if mine and not path.is_file():
                    rows = [{**vars(photo), "target": _tensors(photo.target)} for photo in _decoded(scenes, part)]
                    torch.save(rows, path.with_suffix(".new"))
                    os.replace(path.with_suffix(".new"), path)  # gigabytes, which need not outlive a power cut
                if wait:
                    kept = torch.load(path, mmap=True, weights_only=True)
                    yield [Photo(row["path"], row["image"], Target(**row["target"])) for row in kept]


def _tensors(target: Target) -> dict[str, Tensor]:
    return {name: value for name, value in vars(target).items() if value is not None}


def _decoded(scenes: Scenes, chosen: Sequence[int]) -> list[Photo]:
    """Photos; of pictures that cannot be read those without a path."""

    def decoded(index: int) -> Photo:
        try:
            picture, target = read_at_full_size(scenes, index)
        except UNREADABLE:
            return Photo("", torch.zeros(3, 1, 1, dtype=torch.uint8), Target())
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()  # (3, H, W)
        return Photo(scenes.filename(index), pixels, target)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(decoded, chosen))


def read_at_full_size(scenes: Scenes, index: int) -> tuple[Image.Image, Target]:
    """A picture as large as its map, and its target: what `dense_pack` made smaller is enlarged again.

    Args:
        scenes: scenes in files.
        index: which of them.
    """
    picture, target = scenes.read(scenes.entries[index])
    full = next((x.shape[-2:] for x in (target.masks, target.label_map) if x is not None), None)
    if full is None or (picture.height, picture.width) == full:
        return scenes.picture(index)
    doubled = full[0] % picture.height == 0 == full[1] % picture.width
    how = Image.Resampling.NEAREST if doubled else Image.Resampling.BILINEAR
    return picture.convert("RGB").resize((full[1], full[0]), how), target


def _as_picture(photo: Photo) -> tuple[Image.Image, Target]:
    return Image.fromarray(photo.image.permute(1, 2, 0).contiguous().numpy()), photo.target
