"""A task is a value that says what differs between one kind of training and another; the loop is the same for all.

    what a batch is      open, view, batches, mixing, sample        the loss        objective, answer, teachers
    the evaluation       measure                                    the pictures    pictures

`Task` itself is classification; detection and segmentation (`leanformer.tasks`) change what they do otherwise.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Objective, input_of, set_classes
from ..data.batches import Batch, Plan, Stretch
from ..data.kinds import Arrays, Stream
from ..data.loader import augment_of, training_batches
from ..data.mixing import Mixing
from ..data.places import has_places
from ..data.samples import sample_images
from ..data.sources import check_fit, check_labelled, open_data
from ..settings import Settings
from .evaluation import Conditions, measure
from .judging import NEIGHBOURS, judge_by_neighbours
from .learner import Teachers, choose_objective
from .objectives import logits_of
from .recipe import Recipe

SAMPLE_BATCH = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Classification, and the base of all other tasks.

    >>> Task().name
    'classification'
    """

    name: ClassVar[str] = "classification"

    def to_json(self) -> dict[str, Any]:
        """Name and options as plain values, as the run folder writes them down."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def view(self, model: nn.Module) -> dict[str, Any]:
        """Size and normalisation of the images that a model is shown, as `core.input_of` tells them."""
        return input_of(model)

    def open(self, model: nn.Module, data: Any, val: Any, recipe: Recipe, settings: Settings) -> tuple[Any, Any]:
        """The data to learn from and, where there are some, those to be judged by.

        Args:
            model: The student, which the data must fit; names of classes are written onto its card.
            data: What the user gave as data.
            val: What the user gave for validation.
            recipe: The recipe.
            settings: How the run is carried out.

        Raises:
            ValueError: The data do not fit the model, or the recipe has what this task has not.
        """
        remote = settings.allow_remote
        train_data = open_data(data, "train", settings.seed, recipe.batch_size // settings.accumulate, remote)
        val_data = None
        if val is not None:
            val_data = open_data(val, "val", remote=remote)
        elif isinstance(data, str | os.PathLike) and settings.evaluate_every and train_data.labelled:
            val_data = open_data(data, "val", remote=remote)
        check_fit(model, train_data, val_data)
        train_data.damage.limit = settings.damage_limit
        if train_data.classes is not None and model.num_classes != 0:
            set_classes(model, train_data.classes)
        if val_data is not None:
            check_labelled(val_data)
            check_fit(model, val_data)
            val_data.damage.limit = settings.damage_limit
        return train_data, val_data

    def notes(self, data: Any) -> list[str]:
        """What the log should say of the data, a line each."""
        return []

    def objective(
        self, spec: str | Objective | None, model: nn.Module, teachers: dict[str, nn.Module], named: str, data: Any
    ) -> Objective:
        """The objective asked for, or this task's own.

        Args:
            spec: An objective, or terms as text; None for the recipe's.
            model: The student.
            teachers: By name.
            named: The recipe's terms; auto chooses.
            data: What is learnt from.
        """
        return choose_objective(spec, model, teachers, named, data)

    def batches(self, data: Any, recipe: Recipe, config: dict[str, Any], stretch: Stretch) -> Iterator[Batch]:
        """The micro-batches of some updates, as `data.loader.training_batches` makes them."""
        return training_batches(data, recipe, config, stretch)

    def mixing(
        self, recipe: Recipe, plan: Plan, model: nn.Module, data: Any, config: dict[str, Any]
    ) -> Callable[[Batch], Batch]:
        """What is done to a batch on the device before the model sees it."""
        if isinstance(data, Arrays):
            augment_of(recipe, config)  # refuses what cannot be done to images kept as arrays
        if has_places(data):
            _check_unmixed(recipe)
        elif isinstance(data, Stream) and recipe.repeats > 1:
            raise ValueError(
                f"{data.name} comes in an order of its own, in which no image can be repeated: set repeats=1 in the "
                "recipe"
            )
        return Mixing(recipe, plan, model, data.labelled)

    def teachers(
        self, models: dict[str, nn.Module], paths: dict[str, frozenset[str]], config: dict[str, Any], compile: bool
    ) -> Teachers:
        """The teachers in the form in which a batch is shown to them."""
        return Teachers(models, paths, config, compile)

    def answer(self, objective: Objective, student: Callable[..., Any], images: Any, targets: Any) -> Any:
        """What the student says to a batch in training."""
        return objective.answer(student, images)

    def sample(self, model: nn.Module, data: Any, count: int, seed: int) -> Tensor:
        """So many random images as the model sees them, for calibration: (n, C, H, W)."""
        return sample_images(model, data, count, seed=seed)

    @torch.no_grad()
    def agreement(self, model: nn.Module, teacher: nn.Module, images: Tensor) -> dict[str, float]:
        """How often, in per cent, student and teacher give the same answer; empty where that cannot be told.

        Of backbones without a head it is the mean cosine of their features.
        """
        if model.num_classes != teacher.num_classes:
            return {}
        was_training, parts = model.training, images.split(SAMPLE_BATCH)
        pairs = [(logits_of(model.eval()(part)), logits_of(teacher(part))) for part in parts]
        model.train(was_training)
        if model.num_classes == 0:
            return {"agreement": 100 * torch.cat([F.cosine_similarity(*pair) for pair in pairs]).mean().item()}
        same = torch.cat([one.argmax(-1) == other.argmax(-1) for one, other in pairs])
        return {"agreement": 100 * same.float().mean().item()}

    def measure(self, model: nn.Module, data: Any, config: dict[str, Any], how: Conditions) -> Any:
        """How good a model is: an object with `summary()` (figures by name) and `images` (how many)."""
        return measure(model, data, config, how)

    def measure_of(self, student: nn.Module) -> Callable[..., Any]:
        """`measure`, or the same by neighbours among every other image for a backbone without a head."""
        if getattr(student, "num_classes", None) == 0:
            return lambda model, data, *how: judge_by_neighbours(model, data, None, NEIGHBOURS, *how)
        return self.measure

    def pictures(self, model: nn.Module, data: Any, found: Any, folder: Path) -> None:
        """Draw what the model answers to some pictures into the run folder, where the report finds it.

        Args:
            model: The trained model.
            data: The data for validation.
            found: What `measure` told of them.
            folder: The run folder.
        """


def _check_unmixed(recipe: Recipe) -> None:
    """Refuse to mix or smooth labels that are places in label maps."""
    for name in ("mixup", "cutmix", "label_smoothing"):
        if getattr(recipe, name):
            raise ValueError(
                f"labels from maps go without {name}: set {name}=0 in the recipe; mix_token and smoothing of "
                "token_labels do the same"
            )
