"""Where images come from: arrays kept in memory, folders of files, and streams, all behind one small interface.

    pack:PATH           packed arrays, decoded once and kept as uint8, in memory or on the device
    FOLDER              one folder a class, below `train` and `val`                         (timm)
    hfds/…, wds/…       Hugging Face datasets and WebDataset shards on disk                 (timm)
    (images, labels)    uint8 (n, C, H, W) and class indices, as they are

A data set that does not fit the model is refused before anything is trained.
"""

import glob
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import create_dataset
from timm.utils import natural_key
from torch import Tensor, nn

from ..core import input_of
from .packs import Pack, read_classes, read_pack

READERS = {"hfds": "datasets", "wds": "webdataset"}
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
SPLITS = {"train": ("train", "training"), "val": ("val", "validation", "valid", "eval", "test")}


@dataclass
class Damage:
    """Images that could not be read: counted and named, skipped up to a share of the data set."""

    limit: float = 0.01
    total: int = 0
    names: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, name: str, error: str = "") -> None:
        """Note one image; beyond the limit this is an error."""
        self.count += 1
        if len(self.names) < 20:
            self.names.append(f"{name}: {error}" if error else name)
        allowed = max(1, int(self.limit * self.total))
        if self.count > allowed:
            shown = "\n  ".join(self.names)
            raise ValueError(
                f"{self.count} of {self.total} images cannot be read, more than the {allowed} allowed; the first:\n"
                f"  {shown}"
            )


@dataclass
class Arrays:
    """Images as one uint8 tensor (n, C, H, W) with labels (n,): small data sets, kept where they are used.

    >>> Arrays(torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.zeros(8, dtype=torch.long)).num_classes
    1
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...] | None = None
    name: str = "arrays"
    damage: Damage = field(default_factory=Damage)

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(f"images must be uint8 (n, C, H, W), not {self.images.dtype} {tuple(self.images.shape)}")
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images but {len(self.labels)} labels")
        self.labels = self.labels.long()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.classes) if self.classes else int(self.labels.max()) + 1

    def to(self, device: torch.device | str) -> "Arrays":
        """The same data set on a device."""
        return Arrays(self.images.to(device), self.labels.to(device), self.classes, self.name, self.damage)


@dataclass
class Files:
    """Images read one by one through a reader of timm: a folder or tar of files, or a Hugging Face data set."""

    reader: Any
    classes: tuple[str, ...] | None
    name: str
    damage: Damage = field(default_factory=Damage)

    def __len__(self) -> int:
        return len(self.reader)

    @property
    def num_classes(self) -> int:
        return len(self.classes) if self.classes else 1 + max(label for _, label in self.reader.samples)

    def picture(self, index: int) -> tuple[Image.Image, int]:
        """One image as RGB and its label."""
        self._refuse_pipes(index)
        file, label = self.reader[index]
        image = file if isinstance(file, Image.Image) else Image.open(file)
        return image.convert("RGB"), int(label)

    def _refuse_pipes(self, index: int) -> None:
        """A pipe or a device with the name of an image would be waited for for ever."""
        path = getattr(self.reader, "samples", None) and self.reader.samples[index][0]
        if isinstance(path, str) and os.path.exists(path) and not os.path.isfile(path):
            raise OSError(f"{path} is not a plain file")

    def filename(self, index: int) -> str:
        """A name of the image for reports; the image itself may be gone."""
        try:
            return str(self.reader.filename(index))
        except (NotImplementedError, AttributeError, *UNREADABLE):
            return f"image {index}"


@dataclass
class Stream:
    """Images that come in an order of their own (WebDataset shards); a resumed run reads up to where it was."""

    dataset: Any
    classes: tuple[str, ...] | None
    name: str
    damage: Damage = field(default_factory=Damage)

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def num_classes(self) -> int | None:
        return len(self.classes) if self.classes else None


Data = Arrays | Files | Stream
Source = str | os.PathLike[str] | tuple[Tensor, Tensor] | Data


def open_data(source: Source, split: str = "train", seed: int = 0, batch_size: int = 1) -> Data:
    """The data set that `source` names, checked to hold something.

    >>> len(open_data((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4))))
    4
    """
    if isinstance(source, Arrays | Files | Stream):
        data: Data = source
    elif isinstance(source, tuple):
        data = Arrays(*source)
    elif str(source).startswith("pack:"):
        data = _packs(str(source).removeprefix("pack:"), split)
    elif str(source).split("/")[0] in READERS and not Path(source).exists():
        data = _named(str(source), split, seed, batch_size)
    else:
        data = _folder(Path(source), split)
    if not len(data):
        raise ValueError(f"{data.name} holds no images")
    data.damage.total = len(data)
    return data


def class_names(source: Source) -> tuple[str, ...] | None:
    """The names of a source's classes, read without its images; None where it does not tell them that cheaply.

    >>> class_names("pack:tiny_imagenet")[0]  # doctest: +SKIP
    'n01443537'
    """
    if isinstance(source, Arrays | Files | Stream):
        return source.classes
    if isinstance(source, tuple):
        return None
    if str(source).startswith("pack:"):
        return read_classes(_pack_files(str(source).removeprefix("pack:"), "train")[0])
    if not Path(source).is_dir():
        return None
    folders = (entry.name for entry in os.scandir(_split_folder(Path(source), "train")) if entry.is_dir())
    return tuple(sorted(folders, key=natural_key))


def _packs(pattern: str, split: str) -> Arrays:
    paths = _pack_files(pattern, split)
    packs = [read_pack(path) for path in paths]
    classes = packs[0].classes
    if any(pack.classes != classes for pack in packs):
        raise ValueError(f"the packs {', '.join(paths)} have different classes, so they are not parts of one data set")
    damage = Damage(total=sum(map(len, packs)))
    parts = [_decode(pack, path, damage) for pack, path in zip(packs, paths)]
    images, labels = (torch.cat(tensors) for tensors in zip(*parts))
    return Arrays(images, labels, classes, name=f"pack:{pattern} ({split})", damage=damage)


def _pack_files(pattern: str, split: str) -> list[str]:
    """The files of a split: those matched, or those that have the split's name behind this folder or prefix."""
    exact = sorted(path for path in glob.glob(pattern) if path.endswith(".npz"))
    if exact:
        return exact
    start = os.path.join(pattern, "") if os.path.isdir(pattern) else pattern
    for name in SPLITS.get(split, (split,)):
        found = sorted(glob.glob(f"{glob.escape(start)}*{name}*.npz"))
        if found:
            return found
    raise ValueError(f"no pack of the split '{split}' at {pattern}; looked for {start}*{split}*.npz")


def _decode(pack: Pack, path: str, damage: Damage) -> tuple[Tensor, Tensor]:
    """Images and labels of a pack without those that cannot be read."""

    def pixels(index: int) -> np.ndarray | str:
        try:
            return np.asarray(pack.image(index))  # (H, W, 3)
        except UNREADABLE as error:
            return str(error)

    with ThreadPoolExecutor() as pool:
        decoded = list(pool.map(pixels, range(len(pack))))
    for index, image in enumerate(decoded):
        if isinstance(image, str):
            damage.add(f"{path}[{index}]", image)
    good = [index for index, image in enumerate(decoded) if not isinstance(image, str)]
    images: list[Any] = [decoded[index] for index in good]
    sizes = {image.shape[:2] for image in images}
    if len(sizes) > 1:
        raise ValueError(f"the images of {path} have {len(sizes)} sizes; a pack kept as one array needs one size")
    if not images:
        raise ValueError(f"{path} holds no images")
    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()  # (n, 3, H, W)
    return stacked, pack.labels[good]


def _folder(root: Path, split: str) -> Files:
    if not root.is_dir():
        raise ValueError(f"the data folder {root} does not exist")
    folder = _split_folder(root, split)
    try:
        reader: Any = create_dataset("", str(folder), split=split, search_split=False).reader  # type: ignore[union-attr]
    except RuntimeError as error:
        raise ValueError(f"{folder} holds no images in one folder a class: {error}") from error
    classes = tuple(sorted(reader.class_to_idx, key=reader.class_to_idx.get))
    return Files(reader, classes, name=str(folder))


def _split_folder(root: Path, split: str) -> Path:
    for name in SPLITS.get(split, (split,)):
        if (root / name).is_dir():
            return root / name
    others = [name for names in SPLITS.values() for name in names if (root / name).is_dir()]
    if others:
        raise ValueError(f"{root} has no split '{split}', only {', '.join(others)}")
    return root


def _named(source: str, split: str, seed: int, batch_size: int) -> Files | Stream:
    """`hfds/PATH` or `wds/PATH`: timm's reader of that kind over a path on disk."""
    kind, _, root = source.partition("/")
    package = READERS[kind]
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"{source} needs the package {package}; pip install 'leanformer[data]' brings it")
    tried = []
    for name in SPLITS.get(split, (split,)):
        try:
            if kind == "hfds":
                return _hugging_face(root, name, f"{source} ({split})")
            dataset: Any = create_dataset(
                f"{kind}/", root, split=name, is_training=split == "train", batch_size=batch_size, seed=seed
            )
            return Stream(dataset, None, name=f"{source} ({split})")
        except (ImportError, AssertionError, OSError, ValueError, RuntimeError) as error:
            tried.append(f"{name}: {error}")
    raise ValueError(f"{source} cannot be opened by timm as split '{split}'; {tried[0]}")


def _hugging_face(root: str, split: str, name: str) -> Files:
    """Images of a data set on disk: what `save_to_disk` wrote, or files that `datasets.load_dataset` understands."""
    if not Path(root).is_dir():  # a name without a folder would be looked for on the hub
        raise ValueError(f"the folder {root} does not exist")
    from timm.data.readers.reader_hfds import ReaderHfds

    reader: Any = ReaderHfds(name=str(Path(root).resolve()), split=split)  # create_dataset would write it in small
    classes = tuple(sorted(reader.class_to_idx, key=reader.class_to_idx.get)) or None
    return Files(reader, classes, name=name)


def check_fit(model: nn.Module, data: Data, other: Data | None = None) -> None:
    """Refuse a data set whose classes are not those of the model's head, or of the other split, or its channels."""
    channels, given = input_of(model)["input_size"][0], data.images.shape[1] if isinstance(data, Arrays) else 3
    if channels != given:
        raise ValueError(f"the images of {data.name} have {given} channels, but the model takes {channels}")
    head = getattr(model, "num_classes", None)
    if isinstance(data, Arrays) and isinstance(head, int) and int(data.labels.max()) >= head:
        raise ValueError(f"{data.name} has a label {int(data.labels.max())}, but the model's head has {head} classes")
    named = data.classes is not None
    if isinstance(head, int) and named and data.num_classes != head:
        raise ValueError(
            f"{data.name} has {data.num_classes} classes, but the model's head has {head}; "
            f"create the model with num_classes={data.num_classes}"
        )
    if other is not None and data.classes and other.classes and data.classes != other.classes:
        odd = sorted(set(data.classes) ^ set(other.classes))[:3]
        raise ValueError(
            f"{data.name} and {other.name} have different classes, such as {', '.join(odd) or 'another order'}"
        )
