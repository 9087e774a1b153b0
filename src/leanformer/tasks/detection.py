"""Detection: boxes around objects, and masks of them where the detector has a head for that.

images: list of (C, H, W) between 0 and 1        targets: list of {boxes (n, 4), labels (n,) from 1, masks (n, H, W)}
in training the detector gives its losses by name, in evaluation a list of {boxes, labels, scores, masks}
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from ..core import Objective, Step
from ..data.batches import Batch, Stretch
from ..data.dense import Scenes, Target
from ..data.dense_augment import SceneAugment, SceneEvaluation
from ..data.dense_loader import Shown, training_scenes
from ..data.dense_open import Wanted
from ..settings import Settings
from ..train.evaluation import Conditions
from ..train.objectives import objective
from ..train.recipe import Recipe
from .dense import DenseTask, shown_scenes
from .detection_metrics import DetectionResult, Found, found_in, judge_boxes
from .drawing import Drawing, draw_objects, side_by_side

SURE = 0.5
"""The least score of the objects that are drawn."""


@objective("detection")
class DetectionLoss(Objective):
    """The detector's own losses, each under its name.

    >>> DetectionLoss(weight=0.5).weight
    0.5
    """

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.weight = weight

    def forward(self, step: Step) -> dict[str, Tensor]:
        return {name: self.weight * loss for name, loss in step.student.output.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Detection(DenseTask):
    """The task of a detector.

    >>> Detection().name
    'detection'
    """

    name: ClassVar[str] = "detection"
    terms: ClassVar[str] = "detection"
    taught: ClassVar[str] = "pyramid"
    known: ClassVar[tuple[str, ...]] = ("detection", "pyramid", "features", "relations")

    def wanted(self, model: nn.Module) -> Wanted:
        return "masks" if finds_masks(model) else "boxes"

    def check(self, model: nn.Module, recipe: Recipe, settings: Settings) -> None:
        super().check(model, recipe, settings)
        if recipe.frozen_statistics:
            raise ValueError("a detector has losses in training mode alone: set frozen_statistics=False in the recipe")
        if settings.compile:
            raise ValueError("images of detectors have many sizes, each of which would be compiled: leave compile out")

    def view(self, model: nn.Module) -> dict[str, Any]:
        config = super().view(model)  # the detector normalises by itself
        return {**config, "mean": (0.0,) * len(config["mean"]), "std": (1.0,) * len(config["std"])}

    def batches(self, data: Scenes, recipe: Recipe, config: dict[str, Any], stretch: Stretch) -> Iterator[Batch]:
        for batch in training_scenes(data, SceneAugment(recipe), stretch):
            yield dataclasses.replace(batch, labels=[for_detector(target) for target in batch.labels])

    def answer(self, objective: Objective, student: Callable[..., Any], images: Any, targets: Any) -> Any:
        return student(images, targets)

    def measure(self, model: nn.Module, data: Scenes, config: dict[str, Any], how: Conditions) -> DetectionResult:
        start = time.perf_counter()
        found: list[Found] = []
        with how.judging(model):
            for shown in shown_scenes(data, SceneEvaluation(), how):
                answers = model([each.image for each in shown])
                found += [_compared(each, answer, data) for each, answer in zip(shown, answers)]
        found = gather_object(found) if how.share[1] > 1 else found
        for each in found:
            if each.problem:
                data.damage.add(each.problem)
        return judge_boxes(found, data.classes, "masks" in data.has, time.perf_counter() - start)

    @torch.no_grad()
    def draw(self, model: nn.Module, data: Scenes, index: int) -> Drawing:
        picture, target = data.picture(index)
        answer = detect(model, [picture])[0]
        drawn = [draw_objects(picture, each.boxes, each.labels, data.classes, scores, each.masks)
                 for each, scores in ((target, None), answer)]  # fmt: skip
        found, scores = answer
        words = ", ".join(f"{data.classes[label]} {score:.2f}" for label, score in zip(found.labels, scores))
        return side_by_side(drawn, f"{data.filename(index)}: to be found, and found: {words or 'nothing'}")


def detect(model: nn.Module, pictures: Sequence[Any], least: float = SURE) -> list[tuple[Target, Tensor]]:
    """What a detector finds in pictures: objects, with labels from 0, and their scores.

    Args:
        model: A detector.
        pictures: Pictures of Pillow.
        least: The least score.
    """
    device, was_training = next(model.parameters()).device, model.training
    images = [SceneEvaluation()(picture.convert("RGB"), Target())[0].to(device) for picture in pictures]
    with torch.no_grad():
        answers = model.eval()(images)
    model.train(was_training)
    found = []
    for answer in answers:
        sure = answer["scores"] >= least
        plain = {name: value[sure].float().cpu() for name, value in answer.items()}
        masks = plain["masks"][:, 0] > 0.5 if "masks" in plain else None
        found.append((Target(plain["boxes"], plain["labels"].long() - 1, masks), plain["scores"]))
    return found


def finds_masks(model: nn.Module) -> bool:
    """Whether a detector answers with masks."""
    heads: Any = getattr(model, "roi_heads", None)
    return heads is not None and heads.has_mask()


def for_detector(target: Target) -> dict[str, Tensor]:
    """A target as torchvision's detectors take it, with labels from 1.

    >>> for_detector(Target(torch.tensor([[0.0, 0.0, 4.0, 4.0]]), torch.tensor([0])))["labels"]
    tensor([1])
    """
    plain = {"boxes": target.boxes.float(), "labels": target.labels + 1}
    return plain if target.masks is None else {**plain, "masks": target.masks.to(torch.uint8)}


def _compared(shown: Shown, answer: dict[str, Tensor], data: Scenes) -> Found:
    """What is in a picture and what was found in it, small enough to be kept of all pictures."""
    if shown.problem:
        return Found(shown.index, shown.size, problem=shown.problem)
    plain = {name: value.detach().float().cpu() for name, value in answer.items()}
    masks = plain["masks"][:, 0] > 0.5 if "masks" in plain else None
    target = Target(plain["boxes"], plain["labels"].long() - 1, masks)
    return found_in(shown.index, shown.size, shown.target, target, plain["scores"])
