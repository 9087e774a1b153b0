"""Images for choosing a plan, for training it and for judging it: never the same ones.

    all images → shuffled by the seed → [judging | choosing | training]

A data set with a validation split is judged there; the training split is then shared between choosing and training.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..data.folders import check_plain
from ..data.kinds import same_images
from ..data.sources import Arrays, Data, Files, Source, open_data

FEWEST = 64
"""With fewer images a plan cannot be chosen: every figure would be noise."""
FEWEST_TO_JUDGE = FEWEST // 4
"""Of fewer images each would count for more than six points of the verdict at the end."""


@dataclass(frozen=True)
class Parts:
    """Three data sets without an image in common."""

    choosing: Data
    training: Data
    judging: Data


class _Some:
    """Some of a reader's images, in the order given."""

    def __init__(self, reader: Any, indices: list[int]):
        self.reader, self.indices = reader, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        check_plain(self.reader, self.indices[index])
        return self.reader[self.indices[index]]

    @property
    def samples(self) -> list[Any]:
        return [self.reader.samples[index] for index in self.indices]

    def filename(self, index: int, *arguments: Any, **named: Any) -> Any:
        return self.reader.filename(self.indices[index], *arguments, **named)


def some(data: Data, indices: list[int]) -> Data:
    """The images of a data set at these indices.

    Args:
        data: arrays or files; a stream has no indices.
        indices: which images, in which order.

    >>> len(some(open_data((torch.zeros(8, 3, 4, 4, dtype=torch.uint8), torch.arange(8))), [5, 2]))
    2
    """
    if isinstance(data, Arrays):
        chosen = torch.tensor(indices, dtype=torch.long, device=data.images.device)
        return replace(data, images=data.images[chosen], labels=data.labels[chosen])
    if isinstance(data, Files):
        return replace(data, reader=_Some(data.reader, indices))
    raise ValueError(f"{data.name} is a stream, of which no images can be chosen; give a folder or a pack")


def split(data: Source, judge: Source | None = None, choosing: int = 256, judging: int = 2000, seed: int = 0) -> Parts:
    """Part a data set into images for choosing, training and judging.

    Args:
        data: a data set, with labels or without.
        judge: another data set to judge on; by default the validation split where there is one, else a part of `data`.
        choosing: images for the search, a quarter of all at most.
        judging: images for the verdict at the end, a quarter of all at most, where there is no other data set for it.
        seed: of the shuffle.
    """
    opened = open_data(data, "train")
    if len(opened) < FEWEST:
        raise ValueError(f"{opened.name} holds {len(opened)} images; a plan needs {FEWEST} at least to be chosen by")
    order = torch.randperm(len(opened), generator=torch.Generator().manual_seed(seed)).tolist()
    apart = _judged_apart(data, opened, judge)
    kept = 0 if apart is not None else min(judging, len(order) // 4)
    few = min(choosing, len(order) // 4)
    return Parts(
        choosing=some(opened, order[kept : kept + few]),
        training=some(opened, order[kept + few :]),
        judging=apart if apart is not None else some(opened, order[:kept]),
    )


def _judged_apart(data: Source, opened: Data, judge: Source | None) -> Data | None:
    if judge is not None:
        apart = open_data(judge, "val")
        common = _in_common(opened, apart)
        if common:
            raise ValueError(
                f"{common} of the {len(apart)} images of {apart.name} to judge on are among those to choose and train "
                "by; give others, or none: a part of the data is then kept apart"
            )
        if len(apart) < FEWEST_TO_JUDGE:
            raise ValueError(f"{apart.name} holds {len(apart)} images; a model is judged by {FEWEST_TO_JUDGE} at least")
        return apart
    if not isinstance(data, str | os.PathLike):
        return None
    try:
        other = open_data(data, "val")
    except ValueError:
        return None
    return None if same_images(opened, other) else other  # data without splits are their own validation split


def _in_common(one: Data, other: Data) -> int:
    """How many images two data sets share, as far as arrays or the names of files tell."""
    if same_images(one, other):
        return len(other)
    if not (isinstance(one, Files) and isinstance(other, Files)):
        return 0
    return len(_files(one) & _files(other))


def _files(data: Files) -> set[str]:
    """Where the pictures lie; empty where they are no files of their own."""
    try:
        return {os.path.realpath(data.reader.filename(index, absolute=True)) for index in range(len(data))}
    except (OSError, TypeError, AttributeError, NotImplementedError):
        return set()
