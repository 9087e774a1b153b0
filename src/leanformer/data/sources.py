"""Where images come from: arrays kept in memory, folders of files, and streams, all behind one small interface.

    pack:PATH           packed arrays, decoded once and kept as uint8, in memory or on the device
    FOLDER              one folder a class, below `train` and `val`                         (timm)
    images:FOLDER       all pictures below the folder, without labels
    hfds/…, wds/…       Hugging Face datasets and WebDataset shards on disk                 (timm)
    (images, labels)    uint8 (n, C, H, W) and class indices, as they are
    (images,)           the same without labels

A folder with pictures directly in it and no folder beside them has no classes either. Images without labels can be
learnt from a teacher; their labels are -1. A data set that does not fit the model is refused before training starts.
"""

import glob
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.data import create_dataset
from timm.utils import natural_key
from torch import Tensor, nn

from ..core import input_of
from .folders import check_links
from .kinds import UNREADABLE, Arrays, Damage, Data, Files, Stream
from .packs import Pack, check_labels, read_classes, read_pack

READERS = {"hfds": "datasets", "wds": "webdataset"}
IMAGES = "images:"
SPLITS = {"train": ("train", "training"), "val": ("val", "validation", "valid", "eval", "test")}
Source = str | os.PathLike[str] | tuple[Tensor, Tensor] | tuple[Tensor] | Tensor | Data


def open_data(source: Source, split: str = "train", seed: int = 0, batch_size: int = 1, remote: bool = False) -> Data:
    """The data set that `source` names, checked to hold something; shards behind pipes and URLs only with `remote`.

    Args:
        source: A name as the head of this file lists them, tensors, or a data set that is open already.
        split: train or val.
        seed: Of the order of a stream.
        batch_size: Of the reader of a stream.
        remote: Whether shards may come through pipes and URLs, which run commands and reach the network.

    >>> len(open_data((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4))))
    4
    """
    if isinstance(source, Arrays | Files | Stream):
        data: Data = source
    elif isinstance(source, Tensor):
        data = Arrays.unlabelled(source)
    elif isinstance(source, tuple):
        data = Arrays(*source) if len(source) > 1 and source[1] is not None else Arrays.unlabelled(source[0])
    elif str(source).startswith("pack:"):
        data = _packs(str(source).removeprefix("pack:"), split)
    elif str(source).startswith(IMAGES):
        data = _folder(Path(str(source).removeprefix(IMAGES)), split, labelled=False)
    elif str(source).split("/")[0] in READERS and not Path(source).exists():
        data = _named(str(source), split, seed, batch_size, remote)
    else:
        data = _folder(Path(source), split)
    if not len(data):
        raise ValueError(f"{data.name} holds no images")
    data.damage.total = data.damage.total or len(data)  # parts of a data set share the damage of the whole
    return data


def class_names(source: Source) -> tuple[str, ...] | None:
    """The names of a source's classes, read without its images; None where it does not tell them that cheaply.

    >>> class_names("pack:tiny_imagenet")[0]  # doctest: +SKIP
    'n01443537'
    """
    if isinstance(source, Arrays | Files | Stream):
        return source.classes
    if isinstance(source, tuple | Tensor):
        return None
    if str(source).startswith("pack:"):
        return read_classes(_pack_files(str(source).removeprefix("pack:"), "train")[0])
    if not Path(source).is_dir():
        return None
    folders = (entry.name for entry in os.scandir(_split_folder(Path(source), "train")) if entry.is_dir())
    return tuple(sorted(folders, key=natural_key)) or None


def _packs(pattern: str, split: str) -> Arrays:
    paths = _pack_files(pattern, split)
    packs = [read_pack(path) for path in paths]
    classes = packs[0].classes
    if any(pack.classes != classes for pack in packs):
        raise ValueError(f"the packs {', '.join(paths)} have different classes, so they are not parts of one data set")
    damage = Damage(total=sum(map(len, packs)))
    parts = [_decode(pack, path, damage) for pack, path in zip(packs, paths)]
    images, labels = (torch.cat(tensors) for tensors in zip(*parts))
    # where only some of them have labels, they count as labelled: what needs a label of every image refuses them
    labelled = any(pack.labelled for pack in packs)
    return Arrays(images, labels, classes, f"pack:{pattern} ({split})", damage, labelled)


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


def _folder(root: Path, split: str, labelled: bool = True) -> Files:
    """The pictures below a folder; labelled by their folders unless told otherwise, or where there are none."""
    if not root.is_dir():
        raise ValueError(f"the data folder {root} does not exist")
    folder = _split_folder(root, split)
    check_links(folder)
    try:
        reader: Any = create_dataset("", str(folder), split=split, search_split=False).reader  # type: ignore[union-attr]
    except RuntimeError as error:
        raise ValueError(f"{folder} holds no images, in one folder a class or otherwise: {error}") from error
    classes = tuple(sorted(reader.class_to_idx, key=reader.class_to_idx.get))
    if not labelled or classes == ("",):  # the class of a picture that lies in no folder
        return Files(reader, None, name=str(folder), labelled=False)
    return Files(reader, classes, name=str(folder))


def _split_folder(root: Path, split: str) -> Path:
    for name in SPLITS.get(split, (split,)):
        if (root / name).is_dir():
            return root / name
    others = [name for names in SPLITS.values() for name in names if (root / name).is_dir()]
    if others:
        raise ValueError(f"{root} has no split '{split}', only {', '.join(others)}")
    return root


def _named(source: str, split: str, seed: int, batch_size: int, remote: bool) -> Files | Stream:
    """`hfds/PATH` or `wds/PATH`: timm's reader of that kind over a path on disk."""
    kind, _, root = source.partition("/")
    if Path(root).is_dir():
        root = os.path.abspath(root)  # never read as a URL, whatever the folder is called
    elif kind == "wds" and not remote:
        raise ValueError(
            f"there is no folder {root!r} for {source!r}; pipes and URLs, which run commands and reach the network, "
            "are read with --allow-remote alone (allow_remote=True in Python)"
        )
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
        except Exception as error:  # timm's readers fail on description files in every way there is
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


def check_labelled(data: Data) -> None:
    """Refuse images without labels where accuracy is asked for."""
    if not data.labelled:
        raise ValueError(
            f"{data.name} has no labels, so there is no accuracy to tell; give images in one folder a class"
        )


def check_channels(model: nn.Module, data: Data) -> None:
    """Refuse images that have not as many channels as the model takes, and a model that cannot normalise so many.

    Args:
        model: The model that is shown the images.
        data: A data set.
    """
    view = input_of(model)
    channels, given = view["input_size"][0], data.images.shape[1] if isinstance(data, Arrays) else 3
    if channels != given:
        raise ValueError(f"the images of {data.name} have {given} channels, but the model takes {channels}")
    if not len(view["mean"]) == len(view["std"]) == channels:
        values = (0.5,) * channels
        raise ValueError(
            f"the model takes {channels} channels, but its images are normalised by a mean of {len(view['mean'])}; "
            f"give it another one: lf.core.set_input(model, {{'mean': {values}, 'std': {values}}})"
        )


def check_fit(model: nn.Module, data: Data, other: Data | None = None) -> None:
    """Refuse a data set whose classes are not those of the model's head or of the other split, or other channels.

    Args:
        model: The model that is trained or evaluated.
        data: A data set; one without labels has no classes that could be wrong.
        other: The other split of it.
    """
    check_channels(model, data)
    if not data.labelled:
        return
    head = getattr(model, "num_classes", None)
    if head != 0:  # a backbone without a head is judged by its features, whatever the classes
        _check_head(data, head)
    if other is not None:
        check_classes(data, other)


def _check_head(data: Data, head: Any) -> None:
    """Refuse labelled data of other classes than those of a head, as far as it tells how many it has."""
    if isinstance(data, Arrays):
        check_labels(data.labels, head if isinstance(head, int) else None, data.name)
    named = data.classes is not None
    if isinstance(head, int) and named and data.num_classes != head:
        raise ValueError(
            f"{data.name} has {data.num_classes} classes, but the model's head has {head}; "
            f"create the model with num_classes={data.num_classes}"
            + (f", or write {IMAGES}FOLDER if its folders are no classes" if isinstance(data, Files) else "")
        )


def check_classes(one: Data, other: Data) -> None:
    """Refuse two splits of which both name their classes, but not the same ones in the same order.

    Args:
        one: A split.
        other: Another one.
    """
    if one.classes and other.classes and one.classes != other.classes:
        odd = sorted(set(one.classes) ^ set(other.classes))[:3]
        raise ValueError(
            f"{one.name} and {other.name} have different classes, such as {', '.join(odd) or 'another order'}"
        )
