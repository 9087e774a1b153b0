"""Packs: a whole labelled image set in one npz file, JPEG bytes end to end.

    jpeg     all files' bytes in one uint8 array           image i is jpeg[offsets[i] : offsets[i + 1]]
    offsets  n + 1 positions in it
    labels   n class indices
    classes  names in label order, where there are names

n images, H x W pixels.
"""

import contextlib
import io
import os
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

FIELDS = ("jpeg", "offsets", "labels")


@dataclass(frozen=True)
class Pack:
    """Images as JPEG bytes with their labels; `len` is the number of images."""

    jpeg: np.ndarray
    offsets: np.ndarray
    labels: Tensor
    """(n,) int64"""
    classes: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> Image.Image:
        """One image as RGB."""
        start, stop = self.offsets[index : index + 2]
        return Image.open(io.BytesIO(self.jpeg[start:stop].tobytes())).convert("RGB")

    def decode(self, indices: Iterable[int] | None = None, threads: int | None = None) -> Tensor:
        """The images as uint8 (n, 3, H, W); they must all have one size.

        >>> read_pack("tiny_imagenet_val.npz").decode(range(8)).shape  # doctest: +SKIP
        torch.Size([8, 3, 64, 64])
        """
        indices = list(range(len(self)) if indices is None else indices)
        with ThreadPoolExecutor(threads) as pool:
            images = list(pool.map(self._pixels, indices))
        sizes = {image.shape for image in images}
        if len(sizes) > 1:
            raise ValueError(f"the images have {len(sizes)} different sizes, so they make no tensor; resize each one")
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()  # (n, 3, H, W)

    def _pixels(self, index: int) -> np.ndarray:
        return np.asarray(self.image(index))  # (H, W, 3)


def read_pack(path: str | os.PathLike[str]) -> Pack:
    """The pack in an npz file.

    >>> len(read_pack("tiny_imagenet_val.npz"))  # doctest: +SKIP
    10000
    """
    with _opened(path) as file:
        labels = torch.from_numpy(file["labels"].astype(np.int64))
        pack = Pack(file["jpeg"], file["offsets"], labels, _classes(file))
    if len(pack.offsets) != len(pack) + 1:
        raise ValueError(f"{path} is not a pack of images: {len(pack)} labels, {len(pack.offsets)} offsets")
    return pack


def read_classes(path: str | os.PathLike[str]) -> tuple[str, ...] | None:
    """The names of a pack's classes, read without its images; None where it has none.

    >>> read_classes("tiny_imagenet_val.npz")[0]  # doctest: +SKIP
    'n01443537'
    """
    with _opened(path) as file:
        return _classes(file)


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The arrays of a pack, read when they are asked for; refuses by name what is no pack."""
    if not Path(path).is_file():
        raise ValueError(f"the pack {path} does not exist")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in FIELDS if name not in file]
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)}; a pack has {', '.join(FIELDS)}")
            yield file
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is not a pack of images: {error}") from error


def _classes(file: Any) -> tuple[str, ...] | None:
    return tuple(map(str, file["classes"])) if "classes" in file else None


def write_pack(
    path: str | os.PathLike[str], images: Iterable[bytes], labels: Iterable[int], classes: Iterable[str] | None = None
) -> Path:
    """Write JPEG (or PNG) files' bytes with their labels as a pack.

    >>> write_pack("set.npz", [Path("cat.jpg").read_bytes()], [0], ["cat"])  # doctest: +SKIP
    """
    files = [np.frombuffer(image, np.uint8) for image in images]
    arrays = {
        "jpeg": np.concatenate(files),
        "offsets": np.cumsum([0, *map(len, files)]),
        "labels": np.asarray(list(labels), np.int16),
    }
    if classes is not None:
        arrays["classes"] = np.asarray(list(classes))
    path = Path(path)
    np.savez(path, **arrays)
    return path
