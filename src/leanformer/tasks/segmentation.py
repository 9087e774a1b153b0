"""Segmentation: a class for every pixel.

    images (B, C, H, W), normalised → logits (B, K, H, W)        label maps (B, H, W), IGNORED where nothing is learnt

In training a random part of each picture is resized to one size; in evaluation pictures are shown as they are, or at a
size that is asked for, and answers are compared at the picture's own size.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn import functional as F

from ..core import Objective, Step
from ..data.batches import Batch, Stretch
from ..data.dense import IGNORED, Scenes, Target
from ..data.dense_augment import SceneAugment, SceneEvaluation
from ..data.dense_loader import Shown, training_scenes
from ..data.dense_open import Wanted
from ..fields import Count, check_fields
from ..train.evaluation import Conditions
from ..train.objectives import logits_of, objective
from ..train.recipe import Recipe
from .dense import DenseTask, shown_scenes
from .drawing import Drawing, draw_map, side_by_side
from .segmentation_metrics import Found, SegmentationResult, confusion, judge_maps, picture_quality


@objective("segmentation")
class SegmentationLoss(Objective):
    """Cross-entropy of every pixel that has a class.

    >>> SegmentationLoss(weight=0.5).weight
    0.5
    """

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.weight = weight

    def forward(self, step: Step) -> dict[str, Tensor]:
        logits = logits_of(step.student.output).float()  # (B, K, H, W)
        total = F.cross_entropy(logits, step.targets, ignore_index=IGNORED, reduction="sum")
        return {"cross_entropy": self.weight * total / (step.targets != IGNORED).sum().clamp_min(1)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segmentation(DenseTask):
    """The task of a segmenter.

    >>> Segmentation(size=(352, 480)).size
    (352, 480)
    """

    name: ClassVar[str] = "segmentation"
    terms: ClassVar[str] = "segmentation"
    taught: ClassVar[str] = "pixels"
    known: ClassVar[tuple[str, ...]] = ("segmentation", "pixels", "pyramid", "features", "relations")
    size: tuple[Count, Count] | None = None
    """Height and width of images in training; None: the model's own."""
    evaluation_size: tuple[Count, Count] | None = None
    """Height and width of images in evaluation; None: each picture's own."""

    def __post_init__(self) -> None:
        check_fields(self)

    def wanted(self, model: nn.Module) -> Wanted:
        return "label_map"

    def view(self, model: nn.Module) -> dict[str, Any]:
        config = super().view(model)
        return config if self.size is None else {**config, "input_size": (config["input_size"][0], *self.size)}

    def batches(self, data: Scenes, recipe: Recipe, config: dict[str, Any], stretch: Stretch) -> Iterator[Batch]:
        view = SceneAugment(recipe, tuple(config["input_size"][1:]), *_normalisation(config))
        for batch in training_scenes(data, view, stretch):
            maps = torch.stack([target.label_map for target in batch.labels]).long()  # (B, H, W)
            yield dataclasses.replace(batch, images=torch.stack(batch.images), labels=maps)

    def measure(self, model: nn.Module, data: Scenes, config: dict[str, Any], how: Conditions) -> SegmentationResult:
        start, view = time.perf_counter(), SceneEvaluation(self.evaluation_size, *_normalisation(config))
        found: list[Found] = []
        total: Any = torch.zeros(data.num_classes, data.num_classes, dtype=torch.long, device=how.device)
        with how.judging(model):
            for shown in shown_scenes(data, view, how):
                for each, answer in zip(shown, _answers(model, shown)):
                    if each.again:
                        continue
                    counts = _confusion(each, answer, data.num_classes)
                    total += counts
                    found.append(Found(each.index, picture_quality(counts), each.problem))
        if how.accelerator is not None and how.share[1] > 1:
            total = how.accelerator.reduce(total)
            found = gather_object(found)
        for each in found:
            if each.problem:
                data.damage.add(each.problem)
        return judge_maps(total.cpu(), found, data.classes, time.perf_counter() - start)

    @torch.no_grad()
    def draw(self, model: nn.Module, data: Scenes, index: int) -> Drawing:
        picture, target = data.picture(index)
        truth: Any = target.label_map
        answer = segment(model, [picture], self)[0]
        drawn = [draw_map(picture, each, data.classes) for each in (truth, answer)]
        right = ((truth == answer) & (truth != IGNORED)).sum() / (truth != IGNORED).sum().clamp_min(1)
        return side_by_side(drawn, f"{data.filename(index)}: the truth, and the answer, {right:.1%} of it right")


def segment(model: nn.Module, pictures: Sequence[Any], task: Segmentation | None = None) -> list[Tensor]:
    """The classes of the pixels of pictures, each (H, W).

    Args:
        model: A segmenter.
        pictures: Pictures of Pillow.
        task: Tells at which size the model is shown them.
    """
    task, device, was_training = task or Segmentation(), next(model.parameters()).device, model.training
    view = SceneEvaluation(task.evaluation_size, *_normalisation(task.view(model)))
    shown = []
    for index, picture in enumerate(pictures):
        image, target = view(picture.convert("RGB"), Target())
        shown.append(Shown(image.to(device), target, index, (picture.height, picture.width)))
    model.eval()
    with torch.no_grad():
        answers = [answer.to(torch.uint8).cpu() for answer in _answers(model, shown)]
    model.train(was_training)
    return answers


def _answers(model: nn.Module, shown: Sequence[Shown]) -> Iterator[Tensor]:
    return label_maps(model, [each.image for each in shown], [each.size for each in shown])


def _confusion(shown: Shown, answer: Tensor, classes: int) -> Tensor:
    """The confusions of a picture (K, K), none where it could not be read."""
    if shown.target.label_map is None:
        return answer.new_zeros(classes, classes)
    return confusion(shown.target.label_map.to(answer.device), answer, classes)


def _normalisation(config: dict[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(config["mean"]), tuple(config["std"])


def label_maps(
    model: Callable[[Tensor], Any], images: Sequence[Tensor], sizes: Sequence[tuple[int, int]]
) -> Iterator[Tensor]:
    """The classes of the pixels of each picture (H, W), at its own size; images of one size are shown together.

    Args:
        model: A segmenter, or what answers in its place.
        images: Pictures as the model sees them, each (C, h, w).
        sizes: Height and width of each picture.
    """
    same = len({image.shape for image in images}) == 1
    batches = [torch.stack([*images])] if same else [image[None] for image in images]
    logits = (each for batch in batches for each in logits_of(model(batch)).float())  # (K, h, w) each
    for size, answer in zip(sizes, logits):
        yield answer.argmax(0) if tuple(answer.shape[1:]) == size else _enlarged(answer, size)  # (H, W)


def _enlarged(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """The classes of the pixels at another size, one after the other: all logits of a photograph fill the memory."""
    best, label_map = logits.new_full(size, -torch.inf), logits.new_zeros(size, dtype=torch.long)
    for label, each in enumerate(logits):
        score = F.interpolate(each[None, None], size, mode="bilinear", align_corners=False)[0, 0]  # (H, W)
        higher = score > best
        best, label_map = torch.where(higher, score, best), torch.where(higher, label, label_map)
    return label_map
