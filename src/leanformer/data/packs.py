"""Packs: a whole labelled image set in one npz file, JPEG bytes end to end.

    jpeg     all files' bytes in one uint8 array           image i is jpeg[offsets[i] : offsets[i + 1]]
    offsets  n + 1 positions in it
    labels   n class indices; missing where nobody labelled the images
    classes  names in label order, where there are names

n images, H x W pixels.
"""

import contextlib
import io
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..core import check_file, one_line

FIELDS = ("jpeg", "offsets")
UNLABELLED = -1
"""The label of every image of a pack without labels."""
BROKEN = (ValueError, TypeError, KeyError, EOFError, OSError, MemoryError, RuntimeError, NotImplementedError)
"""What numpy and zipfile raise for files that are damaged, encrypted, or claim more than there is."""


@dataclass(frozen=True)
class Pack:
    """Images as JPEG bytes with their labels; `len` is the number of images."""

    jpeg: np.ndarray
    offsets: np.ndarray
    labels: Tensor
    """(n,) int64; -1 everywhere where the images are not labelled"""
    classes: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labelled(self) -> bool:
        """Whether the images have labels."""
        return bool((self.labels != UNLABELLED).any())

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
        jpeg = file["jpeg"]
        offsets = _offsets(file["offsets"], jpeg)
        labels = file["labels"] if "labels" in file else np.full(len(offsets) - 1, UNLABELLED)
        if labels.ndim == 1 and len(offsets) != len(labels) + 1:
            raise ValueError(f"{len(labels)} labels, {len(offsets)} offsets")
        classes = _classes(file)
        return Pack(jpeg, offsets, _labels(labels, classes), classes)


def check_labels(labels: Tensor, classes: int | None, name: str) -> None:
    """Refuse labels that are no classes of a model or data set, before anything is computed with them.

    Args:
        labels: Class indices (n,).
        classes: How many classes there are; None where it is not known, then only negative ones are refused.
        name: What messages call the data set.

    >>> check_labels(torch.tensor([0, 7]), 5, "the pack x.npz")
    Traceback (most recent call last):
    ValueError: the pack x.npz: image 1 has the label 7, but there are only 5 classes, 0 to 4
    """
    most = int(labels.max()) + 1 if classes is None and len(labels) else classes or 0
    wrong = (labels < 0) | (labels >= most)  # (n,)
    if not wrong.any():
        return
    index = int(wrong.nonzero()[0])
    label = int(labels[index])
    if label < 0:
        raise ValueError(f"{name}: image {index} has the label {label}; labels count from 0")
    raise ValueError(f"{name}: image {index} has the label {label}, but there are only {most} classes, 0 to {most - 1}")


def _offsets(offsets: np.ndarray, jpeg: np.ndarray) -> np.ndarray:
    if jpeg.dtype != np.uint8 or jpeg.ndim != 1:
        raise ValueError(f"jpeg is {_kind(jpeg)}, not one row of bytes (uint8)")
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or not len(offsets):
        raise ValueError(f"offsets are {_kind(offsets)}, not one row of whole numbers")
    places = offsets.astype(np.int64)
    if places[0] < 0 or places[-1] > len(jpeg) or (np.diff(places) < 0).any():
        raise ValueError(f"offsets do not rise from 0 to the {len(jpeg)} bytes there are")
    return places


def _labels(labels: np.ndarray, classes: tuple[str, ...] | None) -> Tensor:
    if labels.ndim != 1 or (labels.dtype.kind not in "iu" and not _whole(labels)):
        raise ValueError(f"labels are {_kind(labels)}, not one row of whole numbers")
    found = torch.from_numpy(labels.astype(np.int64))  # (n,)
    if not len(found) or (found == UNLABELLED).all():
        return found
    check_labels(found, None if classes is None else len(classes), "labels")
    return found


def _whole(labels: np.ndarray) -> bool:
    """Whether floating-point labels are whole numbers all the same, as some tools write them."""
    return labels.dtype.kind == "f" and bool((np.isfinite(labels) & (labels == np.rint(labels))).all())


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"


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
    path = check_file(path, "the pack ")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in FIELDS if name not in file]
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)}; a pack has {', '.join(FIELDS)} and labels")
            yield file
    except (*BROKEN, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a pack of images: {one_line(error) or type(error).__name__}") from error


def _classes(file: Any) -> tuple[str, ...] | None:
    if "classes" not in file:
        return None
    classes = file["classes"]
    if classes.ndim != 1 or classes.dtype.kind not in "US":
        raise ValueError(f"classes are {_kind(classes)}, not one row of names")
    return tuple(map(str, classes))


def write_pack(
    path: str | os.PathLike[str],
    images: Iterable[bytes],
    labels: Iterable[int] | None,
    classes: Iterable[str] | None = None,
) -> Path:
    """Write JPEG (or PNG) files' bytes with their labels as a pack.

    Args:
        path: The npz file.
        images: The bytes of each file.
        labels: The class of each image, from 0; None where they have none.
        classes: The names of the classes in the order of the labels.

    >>> write_pack("set.npz", [Path("cat.jpg").read_bytes()], [0], ["cat"])  # doctest: +SKIP
    """
    files = [np.frombuffer(image, np.uint8) for image in images]
    arrays = {
        "jpeg": np.concatenate(files),
        "offsets": np.cumsum([0, *map(len, files)]),
    }
    if labels is not None:
        arrays["labels"] = np.asarray(list(labels), np.int32)
    if classes is not None:
        arrays["classes"] = np.asarray(list(classes))
    path = Path(path)
    np.savez(path, **arrays)
    return path
