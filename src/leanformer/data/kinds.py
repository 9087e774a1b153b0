"""The three kinds of data sets (arrays in memory, files read one by one, streams), and what is damaged in them."""

import struct
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from .folders import check_plain

UNREADABLE = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, OverflowError, struct.error, zlib.error,
    Image.DecompressionBombError,
)  # fmt: skip
"""What Pillow raises on a file that cannot be decoded."""


@dataclass
class Damage:
    """Images that could not be read: named and counted once each, skipped up to a share of the data set.

    >>> damage = Damage(total=1000)
    >>> for _ in range(50):
    ...     damage.add("a.png: cannot identify image file")
    >>> damage.count
    1
    """

    limit: float = 0.01
    total: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    """The name of each image → what is wrong with it."""

    @property
    def count(self) -> int:
        """How many images could not be read, however often that was tried."""
        return len(self.problems)

    @property
    def names(self) -> list[str]:
        """Each image as `name: error`, in the order in which they were found."""
        return [f"{name}: {error}" if error else name for name, error in self.problems.items()]

    def add(self, name: str, error: str = "") -> None:
        """Note that an image could not be read; more images than the limit allows are an error.

        Args:
            name: Its name; or, without `error`, its name and what is wrong with it as `name: error`.
            error: What is wrong with it.
        """
        if not error:
            name, _, error = name.partition(": ")
        self.problems.setdefault(name, error)
        allowed = max(1, int(self.limit * self.total))
        if self.count > allowed:
            shown = "\n  ".join(self.names[:20])
            raise ValueError(
                f"{self.count} of {self.total} images cannot be read, more than the {allowed} allowed; the first:\n"
                f"  {shown}"
            )


@dataclass
class Arrays:
    """Images as one uint8 tensor (n, C, H, W) with labels (n,): small data sets, kept where they are used.

    Without labels, `labelled` is False and all labels are -1; `Arrays.unlabelled` makes such a data set.

    >>> Arrays(torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.zeros(8, dtype=torch.long)).num_classes
    1
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...] | None = None
    name: str = "arrays"
    damage: Damage = field(default_factory=Damage)
    labelled: bool = True

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(f"images must be uint8 (n, C, H, W), not {self.images.dtype} {tuple(self.images.shape)}")
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images but {len(self.labels)} labels")
        self.labels = self.labels.long()

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def unlabelled(cls, images: Tensor) -> "Arrays":
        """Images without labels.

        >>> Arrays.unlabelled(torch.zeros(8, 3, 32, 32, dtype=torch.uint8)).labels.unique()
        tensor([-1])
        """
        return cls(images, torch.full((len(images),), -1, device=images.device), labelled=False)

    @property
    def num_classes(self) -> int | None:
        if not self.labelled:
            return None
        return len(self.classes) if self.classes else int(self.labels.max()) + 1

    def to(self, device: torch.device | str) -> "Arrays":
        """The same data set on a device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


@dataclass
class Files:
    """Images read one by one through a reader of timm: a folder or tar of files, or a Hugging Face data set.

    Where `labelled` is False, what the reader tells of classes is not used and all labels are -1.
    """

    reader: Any
    classes: tuple[str, ...] | None
    name: str
    damage: Damage = field(default_factory=Damage)
    labelled: bool = True

    def __len__(self) -> int:
        return len(self.reader)

    @property
    def num_classes(self) -> int | None:
        if not self.labelled:
            return None
        return len(self.classes) if self.classes else 1 + max(label for _, label in self.reader.samples)

    def picture(self, index: int) -> tuple[Image.Image, int]:
        """One image as RGB, decoded, and its label."""
        check_plain(self.reader, index)
        file, label = self.reader[index]
        image = file if isinstance(file, Image.Image) else Image.open(file)
        return image.convert("RGB"), int(label) if self.labelled else -1

    def filename(self, index: int) -> str:
        """A name of the image for reports, no other image's; the image itself may be gone."""
        try:
            name = self.reader.filename(index)
        except (NotImplementedError, AttributeError, *UNREADABLE):
            name = None
        return f"image {index}" if name is None else str(name)  # what was never a file has none


@dataclass
class Stream:
    """Images that come in an order of their own (WebDataset shards); a resumed run reads up to where it was."""

    dataset: Any
    classes: tuple[str, ...] | None
    name: str
    damage: Damage = field(default_factory=Damage)
    labelled: bool = True

    def __len__(self) -> int:
        # the length of timm's readers is what one process reads of them
        return getattr(getattr(self.dataset, "reader", None), "num_samples", None) or len(self.dataset)

    @property
    def num_classes(self) -> int | None:
        return len(self.classes) if self.classes else None


Data = Arrays | Files | Stream


def same_images(one: Data, other: Data) -> bool:
    """Whether two data sets hold the very same images: the same arrays, or files of the same folder.

    Args:
        one: A data set.
        other: Another one, or the same opened again under another split's name.

    >>> pixels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    >>> same_images(Arrays.unlabelled(pixels), Arrays.unlabelled(pixels.clone()))
    True
    """
    if isinstance(one, Arrays) and isinstance(other, Arrays):
        here, there = one.images, other.images
        return here.shape == there.shape and torch.equal(here, there.to(here.device))
    return one is other or (isinstance(one, Files) and isinstance(other, Files) and one.name == other.name)
