"""Accuracy of a model on a data set, with the input size, crop and normalisation that its card states."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..core import halved, input_of
from ..data.batches import worker_count
from ..data.packs import check_labels
from ..data.sources import UNREADABLE, Arrays, Data, Files, Source, check_fit, check_labelled, open_data
from ..data.view import EvaluationView
from .objectives import logits_of

ON_CPU, ON_GPU = 8, 256
"""Images at a time."""


@dataclass(frozen=True)
class Evaluation:
    """What a model got right. Accuracies are in per cent; `labels` and `predictions` are (n,)."""

    top1: float
    top5: float
    loss: float
    images: int
    seconds: float
    labels: Tensor
    predictions: Tensor
    classes: tuple[str, ...] | None = None
    damaged: int = 0

    @property
    def images_per_second(self) -> float:
        """Speed of the evaluation, reading the images included."""
        return self.images / self.seconds

    def summary(self) -> dict[str, float]:
        """The figures that go to logs."""
        return {"top1": self.top1, "top5": self.top5, "loss": self.loss}

    def per_class(self) -> list[tuple[str, int, float]]:
        """(class, images, accuracy in per cent) of every class that occurs, the worst first."""
        rows = []
        for label in self.labels.unique().tolist():
            mine = self.labels == label
            right = (self.predictions[mine] == label).float().mean().item()
            rows.append((self._name(label), int(mine.sum()), 100 * right))
        return sorted(rows, key=lambda row: row[2])

    def confusions(self, most: int = 10) -> list[tuple[str, str, int]]:
        """(true class, predicted class, images) of the most frequent mistakes."""
        wrong = self.labels != self.predictions
        pairs = torch.stack([self.labels[wrong], self.predictions[wrong]], dim=1)  # (m, 2)
        unique, counts = pairs.unique(dim=0, return_counts=True)
        order = counts.argsort(descending=True, stable=True)[:most].tolist()
        return [(self._name(int(unique[i, 0])), self._name(int(unique[i, 1])), int(counts[i])) for i in order]

    def _name(self, label: int) -> str:
        return self.classes[label] if self.classes else str(label)


def evaluate(
    model: nn.Module,
    data: Source,
    *,
    split: str = "val",
    batch_size: int | None = None,
    device: str | None = None,
    precision: str = "no",
    compile: bool = False,
    workers: int | None = None,
    crop: float | None = None,
) -> Evaluation:
    """Evaluate a model in evaluation mode on a labelled data set.

    Args:
        model: Any classifier.
        data: A data set, as `open_data` takes it.
        split: Which part of it.
        batch_size: Images at a time; by default 8 on a CPU, whose cache holds what so many need, and else 256.
        device: cpu, cuda, …; the fastest there is by default.
        precision: no, bf16 or fp16.
        compile: Compile the model first.
        workers: Processes that read files; by default as many as there are cores.
        crop: The share of each picture that is looked at, instead of what the model's card states.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=5)
    >>> images, labels = torch.zeros(6, 3, 32, 32, dtype=torch.uint8), torch.arange(6) % 5
    >>> lf.train.evaluate(model, (images, labels), device="cpu").images
    6
    """
    opened = open_data(data, split)
    if getattr(model, "num_classes", None) == 0:
        raise ValueError(
            "this backbone has no head to evaluate; judge its features: knn_accuracy, linear_probe (--knn)"
        )
    check_fit(model, opened)
    how = Conditions.on(device, batch_size, precision, workers)
    model = model.to(how.device)
    run: Any = torch.compile(model) if compile else model
    return measure(run, opened, seen_by(model, crop), how)


@dataclass(frozen=True)
class Conditions:
    """Under which conditions a model is judged on images.

    Attributes:
        device: Where the model is.
        batch_size: Images at a time; None: as many as suit the device.
        precision: no, bf16 or fp16.
        workers: Processes that read files; None: as many as there are cores.
        accelerator: With one, each process takes its share of the images and all get the whole result.
    """

    device: torch.device
    batch_size: int | None = None
    precision: str = "no"
    workers: int | None = None
    accelerator: Accelerator | None = None

    @classmethod
    def on(cls, device: str | None, *others: Any) -> Self:
        """The conditions on a device of this name, by default the fastest there is."""
        return cls(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")), *others)

    @property
    def share(self) -> tuple[int, int]:
        """The number of this process, and how many there are."""
        return (self.accelerator.process_index, self.accelerator.num_processes) if self.accelerator else (0, 1)

    @contextlib.contextmanager
    def judging(self, model: nn.Module) -> Iterator[None]:
        """Within the context a model is in evaluation mode, computes in the precision, and keeps no gradients.

        A model whose weights have less than float32 computes in theirs.

        >>> with Conditions.on("cpu", None, "bf16").judging(nn.Identity()):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.bfloat16
        """
        halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = halves.get(self.precision, halved(model))
        modes = {module: module.training for module in model.modules()}  # parts may have modes of their own
        model.eval()
        try:
            with torch.no_grad(), torch.autocast(self.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
                yield
        finally:
            for module, training in modes.items():
                module.training = training


def seen_by(model: nn.Module, crop: float | None) -> dict[str, Any]:
    """What a model sees of pictures, as `core.input_of` tells it, with another crop where one is given."""
    return {**input_of(model), **({} if crop is None else {"crop_pct": crop})}


def measure(model: nn.Module, data: Data, config: dict[str, Any], how: Conditions) -> Evaluation:
    """The evaluation itself.

    Args:
        model: Any classifier, on its device.
        data: A labelled data set.
        config: What `core.input_of` gives of the model.
        how: Under which conditions.
    """
    check_labelled(data)
    found, damaged = [], []
    start = time.perf_counter()
    with how.judging(model):
        for images, labels, names in evaluation_batches(data, config, how):
            logits = logits_of(model(as_wide(images, model))).float()  # (b, classes)
            if not isinstance(data, Arrays):  # those were looked at before
                check_labels(labels.clamp_min(0), logits.shape[1], f"{data.name}, in a batch of {len(labels)}")
            top = logits.topk(min(5, logits.shape[1])).indices  # (b, 5)
            loss = F.cross_entropy(logits, labels.clamp_min(0), reduction="none")  # (b,)
            hit = (top == labels[:, None]).any(1)
            found.append(torch.stack([labels, top[:, 0], hit, loss], dim=1).double())  # (b, 4)
            damaged += names
    table = torch.cat(found)  # (m, 4)
    table = (how.accelerator.gather(table) if how.accelerator and how.share[1] > 1 else table).cpu()  # type: ignore[union-attr]
    seconds = time.perf_counter() - start
    for name in damaged:
        data.damage.add(name)
    return _result(table[table[:, 0] >= 0], seconds, data, len(damaged))


def as_wide(images: Tensor, model: nn.Module) -> Tensor:
    """Images in float64 for a model whose weights are; autocast sees to narrower ones.

    >>> as_wide(torch.zeros(2), nn.Linear(2, 2).double()).dtype
    torch.float64
    """
    return images.double() if any(each.dtype == torch.float64 for each in model.parameters()) else images


def default_batch(device: torch.device) -> int:
    """Images at a time in evaluation: on a CPU so few that their activations stay in its cache.

    >>> default_batch(torch.device("cpu"))
    8
    """
    return ON_CPU if device.type == "cpu" else ON_GPU


def _result(table: Tensor, seconds: float, data: Data, damaged: int) -> Evaluation:
    labels, predictions, hit, loss = table.unbind(1)
    return Evaluation(
        top1=100 * (labels == predictions).double().mean().item(),
        top5=100 * hit.mean().item(),
        loss=loss.mean().item(),
        images=len(table),
        seconds=seconds,
        labels=labels.long(),
        predictions=predictions.long(),
        classes=data.classes,
        damaged=damaged,
    )


def _shares(total: int, batch_size: int, process: int, processes: int) -> Iterator[list[int]]:
    """Index lists of one process, as many and as long for each: -1 stands where the images are used up.

    All batches have one size, since a compiled model would be compiled anew for a smaller last one.
    """
    each = -(-total // processes)
    size = min(batch_size, each)
    each = -(-each // size) * size
    mine = [index if index < total else -1 for index in range(process, each * processes, processes)]
    for first in range(0, each, size):
        yield mine[first : first + size]


def evaluation_batches(
    data: Data, config: dict[str, Any], how: Conditions
) -> Iterator[tuple[Tensor, Tensor, list[str]]]:
    """Images, labels (-1: not to be counted) and names of unreadable images, batch by batch.

    Args:
        data: A labelled data set.
        config: What `core.input_of` gives of the model that is shown the images.
        how: How many at a time, and where they are wanted.
    """
    view, device, workers = EvaluationView(config), how.device, worker_count(how.workers)
    size = how.batch_size or default_batch(device)
    if isinstance(data, Arrays):
        for indices in _shares(len(data), size, *how.share):
            chosen = torch.tensor(indices, device=data.images.device)  # (b,)
            images = data.images[chosen.clamp_min(0)].to(device, non_blocking=True)
            labels = torch.where(chosen < 0, -1, data.labels[chosen.clamp_min(0)]).to(device)
            yield view(images), labels, []
    elif isinstance(data, Files):
        shares = list(_shares(len(data), size, *how.share))
        for images, labels, names in DataLoader(_Pictures(data, view), batch_sampler=shares, num_workers=workers):
            yield images.to(device), labels.to(device), [name for name in names if name]
    else:
        data.dataset.transform = view
        for images, labels in DataLoader(data.dataset, batch_size=size, num_workers=workers):
            yield images.to(device), labels.to(device), []


class _Pictures(Dataset):
    """Images for evaluation; one that cannot be read becomes black with label -1, and its name is passed on."""

    def __init__(self, data: Files, view: EvaluationView):
        self.data, self.view = data, view

    def __getitem__(self, index: int) -> tuple[Tensor, int, str]:
        if index < 0:
            return self._black(), -1, ""
        try:
            picture, label = self.data.picture(index)
        except UNREADABLE as error:
            return self._black(), -1, f"{self.data.filename(index)}: {error}"
        return self.view(picture), label, ""

    def _black(self) -> Tensor:
        return self.view(Image.new("RGB", (256, 256)))
