"""From records to batches of pixels, in processes of their own; a picture that cannot be read leaves its reason.

    rows [first, stop) → {keys, errors, groups of equal size, seconds of reading and of decoding}

Batches begin at multiples of the batch size whatever was done before, so that a continued run computes bit for bit what
one run computes. b images of a batch, C x H x W the model's input.
"""

import contextlib
import dataclasses
import io
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .records import Read, Records
from .storage import reason
from .views import View, pixels_of

READERS_YIELD = 10
"""By how much reading processes are less urgent than the model beside them on a CPU."""


@dataclasses.dataclass
class PixelBatch:
    """Pictures ready for the device.

    Attributes:
        first: The number of the first row.
        keys: The names of the rows.
        errors: Why a picture could not be read, row by row; None for those that could.
        groups: (positions in the batch (g,), images): pixels uint8 (g, C, h, w), one group a size, or what the model
            sees already, float (g, C, H, W).
        reading: Seconds that reading took.
        decoding: Seconds that decoding and resizing took.
    """

    first: int
    keys: list[str]
    errors: list[str | None]
    groups: list[tuple[Tensor, Tensor]]
    reading: float
    decoding: float

    def __len__(self) -> int:
        return len(self.keys)

    def pin_memory(self) -> "PixelBatch":
        """The same in memory that a GPU reads directly; the loader calls it."""
        pinned = [(positions.pin_memory(), images.pin_memory()) for positions, images in self.groups]
        return dataclasses.replace(self, groups=pinned)


def read_batch(records: Records, rows: range, view: View, resize: bool) -> PixelBatch:
    """Read and decode some rows.

    Args:
        records: The source.
        rows: Which rows.
        view: How the model sees pictures.
        resize: Whether all pictures are resized here; False leaves those of a batched source to the device.
    """
    reading = decoding = 0.0
    keys: list[str] = []
    errors: list[str | None] = []
    sizes: dict[tuple[int, ...], list[tuple[int, Tensor]]] = {}
    for position, index in enumerate(rows):
        begun = read = time.perf_counter()
        error = image = None
        try:
            keys.append(_name(records, index))
            stored = records.read(index)
            read = time.perf_counter()
            image = decode(stored, view, records.batched)
        except Exception as failure:  # files and decoders fail in every way there is
            error = _why(failure)
        if image is not None:
            sizes.setdefault(tuple(image.shape), []).append((position, image))
        errors.append(error)
        reading += max(read - begun, 0.0)
        decoding += time.perf_counter() - max(read, begun)
    begun = time.perf_counter()
    groups = []
    for group in sizes.values():
        images = torch.stack([image for _, image in group])  # (g, C, h, w)
        seen = view(images) if resize and images.dtype == torch.uint8 else images
        groups.append((torch.tensor([position for position, _ in group]), seen))
    decoding += time.perf_counter() - begun
    return PixelBatch(rows.start, keys, errors, groups, reading, decoding)


def _why(failure: Exception) -> str:
    """The same words whenever the same picture fails, so that two runs give equal rows."""
    if isinstance(failure, UnidentifiedImageError):
        return "not a picture of a known format"
    return re.sub(r" at 0x[0-9a-f]+", "", f"{type(failure).__name__}: {reason(failure)}")


def _name(records: Records, index: int) -> str:
    try:
        return records.key(index)
    except Exception:  # the row is named by its place, and reading it says what is wrong
        return f"{records.name}[{index}]"


def decode(stored: Read, view: View, batched: bool) -> Tensor:
    """Pixels uint8 (C, h, w) of a picture that is resized on the device, or what the model sees, float (C, H, W).

    Pictures are turned upright as their camera says; packs and tensors are taken as they are, as in evaluation.
    """
    if isinstance(stored, Tensor):
        if stored.shape[0] != view.channels:
            raise ValueError(f"the image has {stored.shape[0]} channels, the model takes {view.channels}")
        return stored
    picture = Image.open(io.BytesIO(stored)) if isinstance(stored, bytes) else stored
    if not all(picture.size):
        raise ValueError("the picture has no pixels")
    view.check(*picture.size)
    return pixels_of(picture, view.channels) if batched else view(ImageOps.exif_transpose(picture))


class _Batches(Dataset):
    """Whole batches by their rows, as the loader's processes make them."""

    def __init__(self, records: Records, view: View, resize: bool):
        self.records, self.view, self.resize = records, view, resize

    def __getitem__(self, rows: range) -> PixelBatch:
        return read_batch(self.records, rows, self.view, self.resize)


def pixel_batches(records: Records, rows: Sequence[range], view: View, workers: int, gpu: bool) -> Iterator[PixelBatch]:
    """The batches of these rows in their order, made ahead by other processes.

    Args:
        records: The source.
        rows: The rows of each batch.
        view: How the model sees pictures.
        workers: Processes that read; 0: this one.
        gpu: Whether batches go to a GPU: they are put where it reads them directly, and it resizes what it can.
    """
    workers = min(workers, len(rows)) if records.shareable else 0
    sampler: Any = rows
    loader = DataLoader(
        _Batches(records, view, not gpu), batch_size=None, sampler=sampler, num_workers=workers, pin_memory=gpu,
        prefetch_factor=2 if workers else None, collate_fn=None,
        worker_init_fn=None if gpu else _yield_to_the_model,
    )  # fmt: skip
    yield from loader


def _yield_to_the_model(worker: int) -> None:
    """Readers take what the model's threads leave: these wait for each other, so that one held up holds up all."""
    with contextlib.suppress(OSError, AttributeError):  # not every system has it, or lets it be changed
        os.nice(READERS_YIELD)


def batch_rows(missing: Sequence[range], size: int) -> list[range]:
    """The rows of each batch, of `size` rows but for the last of a stretch.

    >>> batch_rows([range(0, 5), range(8, 10)], 4)
    [range(0, 4), range(4, 5), range(8, 10)]
    """
    return [range(at, min(at + size, part.stop)) for part in missing for at in range(part.start, part.stop, size)]
