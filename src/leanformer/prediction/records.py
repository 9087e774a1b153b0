"""Pictures by number: what every source becomes, so that a run can begin anywhere and keeps the order of its input.

records[i] → key(i), the name of row i        read(i) → its file's bytes, or its pixels
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..data.kinds import Files
from ..data.packs import Pack, read_pack
from .storage import is_remote, local_path, read_bytes, stamp

Read = bytes | Image.Image | Tensor
"""What reading gives: a file that is still encoded, a picture, or pixels uint8 (C, H, W)."""


class Records(Protocol):
    """A source of pictures. `len` is the number of rows that a run gives."""

    @property
    def name(self) -> str:
        """What messages call the source."""
        ...

    @property
    def batched(self) -> bool:
        """True for pictures of few sizes, such as those of a pack: their pixels go to the device as they are and are
        resized there in batches, as evaluation does it. Others are resized one by one where they are decoded."""
        ...

    @property
    def shareable(self) -> bool:
        """Whether another process can read them."""
        ...

    def __len__(self) -> int: ...

    def key(self, index: int) -> str:
        """The name of a row: a path, or a place within a file."""
        ...

    def read(self, index: int) -> Read:
        """One picture as it is stored; raises what reading raises."""
        ...

    def fingerprint(self) -> str:
        """A text that is another one for other pictures, so that a run is not continued with them."""
        ...


def digest(parts: Iterable[str | bytes]) -> str:
    """A short hash of texts in their order.

    >>> digest(["a", "b"]) == digest(["ab"])
    False
    """
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()[:32]


@dataclass
class Paths:
    """Pictures that are files of their own.

    >>> Paths("two", ["a.jpg", "b.jpg"]).key(1)
    'b.jpg'
    """

    name: str
    paths: Sequence[str]
    batched: bool = False

    @property
    def shareable(self) -> bool:
        return not in_memory(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def key(self, index: int) -> str:
        return self.paths[index]

    def read(self, index: int) -> bytes:
        return read_bytes(self.paths[index])

    def fingerprint(self) -> str:
        return digest(
            path if is_remote(path) else stamp(path) for path in self.paths
        )  # to ask for each would take long


@dataclass
class Pictures:
    """Pictures that are open already."""

    name: str
    pictures: Sequence[Image.Image]
    batched: bool = False
    shareable: bool = True

    def __len__(self) -> int:
        return len(self.pictures)

    def key(self, index: int) -> str:
        return str(getattr(self.pictures[index], "filename", "") or index)

    def read(self, index: int) -> Image.Image:
        return self.pictures[index]

    def fingerprint(self) -> str:
        return digest(f"{each.size} {each.mode} {each.tobytes()[:4096]!r}" for each in self.pictures)


@dataclass
class Pixels:
    """Images uint8 (n, C, H, W) in memory; rows are named by their numbers."""

    name: str
    images: Tensor
    batched: bool = True
    shareable: bool = True

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(f"images must be uint8 (n, C, H, W), not {self.images.dtype} {tuple(self.images.shape)}")
        self.images = self.images.cpu()

    def __len__(self) -> int:
        return len(self.images)

    def key(self, index: int) -> str:
        return str(index)

    def read(self, index: int) -> Tensor:
        return self.images[index]

    def fingerprint(self) -> str:
        return digest([str(tuple(self.images.shape)), self.images.contiguous().numpy().data])  # type: ignore[list-item]


@dataclass
class Opened:
    """A data set of the data room that reads images one by one; its labels are not used."""

    data: Files
    batched: bool = False
    shareable: bool = True

    @property
    def name(self) -> str:
        return self.data.name

    def __len__(self) -> int:
        return len(self.data)

    def key(self, index: int) -> str:
        return self.data.filename(index)

    def read(self, index: int) -> Image.Image:
        return self.data.picture(index)[0]

    def fingerprint(self) -> str:
        return digest(self.key(index) for index in range(len(self)))


@dataclass
class Packs:
    """The images of packs, one after the other; they stay encoded until they are asked for."""

    name: str
    paths: Sequence[str]
    batched: bool = True
    packs: list[Pack] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.packs = [read_pack(local_path(path)) for path in self.paths]
        self.starts = np.cumsum([0, *map(len, self.packs)])  # (packs + 1,)

    def __getstate__(self) -> dict[str, object]:
        """What goes to other machines: the names, since every one of them reads the files itself."""
        return {"name": self.name, "paths": self.paths, "batched": self.batched}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def shareable(self) -> bool:
        return True

    def __len__(self) -> int:
        return int(self.starts[-1])

    def key(self, index: int) -> str:
        pack, place = self._place(index)
        return f"{self.paths[pack]}[{place}]"

    def read(self, index: int) -> bytes:
        number, place = self._place(index)
        pack = self.packs[number]
        return pack.jpeg[pack.offsets[place] : pack.offsets[place + 1]].tobytes()

    def fingerprint(self) -> str:
        return digest(stamp(path) for path in self.paths)

    def _place(self, index: int) -> tuple[int, int]:
        pack = int(np.searchsorted(self.starts, index, side="right")) - 1
        return pack, index - int(self.starts[pack])


def in_memory(paths: Sequence[str]) -> bool:
    """Whether files lie in the memory of this process, where no other one can read them."""
    return any(path.startswith("memory://") for path in paths[:1])
