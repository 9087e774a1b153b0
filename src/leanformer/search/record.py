"""What a run of `lean` has found so far, in plan.json of its folder: the same call goes on from there."""

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core import card_json, write_atomically
from ..data.kinds import Arrays, Data, Files
from ..speed import chip_name
from .parts import Parts
from .target import Options

FORMAT = 6
LOOKED_AT = 2000
"""Images of a data set by which it is known again."""


class Record:
    """Entries by name, written to plan.json whenever a step is done.

    Args:
        about: what must be the same for a folder's entries to be used again.
        folder: the output folder; None: nothing is written.

    Raises:
        ValueError: for a folder that holds another run, or a damaged one.
    """

    def __init__(self, about: dict[str, Any], folder: Path | None):
        self.entries: dict[str, Any] = {"format": FORMAT, "about": about}
        self.folder = folder
        if folder is not None:
            self._resume(folder)

    def keep(self) -> None:
        """Write all entries."""
        if self.folder is not None:
            text = json.dumps(self.entries, indent=1) + "\n"
            write_atomically(self.folder / "plan.json", lambda name: Path(name).write_text(text))

    def _resume(self, folder: Path) -> None:
        path = folder / "plan.json"
        if path.is_file():
            try:
                found = json.loads(path.read_text())
            except ValueError as error:
                raise ValueError(f"{path} is damaged: {error}; remove it to start anew") from error
            if not isinstance(found, dict) or not isinstance(found.get("about"), dict):
                raise ValueError(f"{path} is no plan of lean; choose another output folder")
            _same(folder, found, json.loads(json.dumps(self.entries)))
            self.entries = found
        folder.mkdir(parents=True, exist_ok=True)


def _same(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse a folder whose run was another one, or whose data have changed since."""
    if found.get("format") != wanted["format"]:
        raise ValueError(f"{folder} was written by another version of lean; choose another output folder")
    differing = [key for key in wanted["about"] if found["about"].get(key) != wanted["about"][key]]
    if set(differing) <= {"data", "images"} and differing:
        raise ValueError(
            f"the images have changed since the run in {folder} began, or others are given now; choose another output "
            "folder"
        )
    if differing:
        raise ValueError(f"{folder} holds another run (other {', '.join(differing)}); choose another output folder")


def about(teacher: nn.Module, parts: Parts, options: Options) -> dict[str, Any]:
    """What must be the same for a folder's results to be used again.

    Args:
        teacher: the unchanged model.
        parts: images for choosing, training and judging.
        options: how the job is done.
    """
    place, recipe = options.place, options.recipe
    every = (parts.choosing, parts.training, parts.judging)
    methods = "all" if options.methods is None else list(options.methods)
    return {
        "model": {**card_json(teacher), "versions": None},
        "weights": weights_fingerprint(teacher),
        "data": [[part.name, len(part)] for part in every],
        "images": [fingerprint(part) for part in every],
        "target": dataclasses.asdict(options.target),
        "place": [chip_name(place.device), place.batch, str(place.dtype), options.runtime],
        "search": [methods, options.sizes, options.evaluations, options.seed],
        "training": [options.train, options.epochs, options.minutes, options.shared, recipe and recipe.to_json()],
    }


def weights_fingerprint(model: nn.Module) -> str:
    """A few letters that change when any weight or buffer of a model does.

    Args:
        model: any model.
    """
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def fingerprint(data: Data) -> str:
    """A few letters that change when the images do: by pixels in memory, by names and sizes of files.

    Args:
        data: a data set; of a large one some thousand images count.

    >>> one = Arrays.unlabelled(torch.zeros(4, 3, 2, 2, dtype=torch.uint8))
    >>> fingerprint(one) == fingerprint(Arrays.unlabelled(one.images + 1))
    False
    """
    digest = hashlib.sha256()
    looked_at = range(0, len(data), max(1, len(data) // LOOKED_AT))
    if isinstance(data, Arrays):
        chosen = torch.tensor(looked_at, device=data.images.device)
        digest.update(data.images[chosen].cpu().numpy().tobytes())
        digest.update(data.labels[chosen.to(data.labels.device)].cpu().numpy().tobytes())
    elif isinstance(data, Files):
        for index in looked_at:
            digest.update(data.filename(index).encode())
            digest.update(str(_size(data, index)).encode())
    return digest.hexdigest()[:16]


def _size(data: Files, index: int) -> int:
    """Bytes of a file; -1 where the images are no files of their own."""
    try:
        return os.path.getsize(data.reader.filename(index, absolute=True))
    except (OSError, TypeError, AttributeError, NotImplementedError):
        return -1
