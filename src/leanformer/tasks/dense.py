"""What detection and segmentation share: scenes as data, teachers that see the student's images, no mixed labels."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as F

from ..core import Objective, set_classes
from ..core.spec import parse_spec
from ..data.batches import Batch, Plan
from ..data.dense import Scenes
from ..data.dense_augment import SceneView
from ..data.dense_loader import Shown, evaluation_scenes
from ..data.dense_open import SceneSource, Wanted, open_scenes
from ..data.kinds import UNREADABLE
from ..settings import Settings
from ..train.evaluation import Conditions
from ..train.learner import Teachers, choose_objective
from ..train.recipe import Recipe
from ..train.task import Task

MISSING = ("mixup", "cutmix", "label_smoothing", "erasing", "auto_augment")
"""Settings of recipes that only classification has."""
SHOWN = 4
"""Pictures that are drawn of the best and of the worst answers."""
BEST, WORST = "among the best", "among the worst"
LARGER = 16
"""An image here has about so many times the patches of one to classify; so many fewer are needed to calibrate."""
ON_CPU, ON_GPU = 2, 8
"""Images at a time in evaluation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseTask(Task):
    """The base of tasks whose answers lie at places of the picture."""

    terms: ClassVar[str] = ""
    """The objective without a teacher, as text."""
    taught: ClassVar[str] = ""
    """What is added where there is a teacher."""
    known: ClassVar[tuple[str, ...]] = ()
    """Objectives that can be named; those of classification would read the answers wrongly."""

    def wanted(self, model: nn.Module) -> Wanted:
        """What of a scene the model learns from."""
        raise NotImplementedError

    def check(self, model: nn.Module, recipe: Recipe, settings: Settings) -> None:
        """Refuse what this task cannot do."""
        for name in MISSING:
            if getattr(recipe, name):
                nothing = None if name == "auto_augment" else 0
                raise ValueError(f"{self.name} has no {name}: set {name}={nothing} in the recipe, or take recipe dense")

    def open(
        self, model: nn.Module, data: SceneSource, val: SceneSource | None, recipe: Recipe, settings: Settings
    ) -> tuple[Scenes, Scenes | None]:
        self.check(model, recipe, settings)
        train_data = self.scenes(model, data, "train")
        val_data = None
        if val is not None or (isinstance(data, str | os.PathLike) and settings.evaluate_every):
            val_data = self.scenes(model, data if val is None else val, "val")
            if val_data.classes != train_data.classes:
                odd = sorted(set(val_data.classes) ^ set(train_data.classes))[:3]
                raise ValueError(
                    f"{train_data.name} and {val_data.name} have different classes, such as "
                    f"{', '.join(odd) or 'another order'}"
                )
        for each in (train_data, val_data):
            if each is not None:
                each.damage.limit = settings.damage_limit
        set_classes(model, train_data.classes)
        return train_data, val_data

    def scenes(self, model: nn.Module, source: SceneSource, split: str) -> Scenes:
        """A split of the data, refused where its classes are not the model's.

        Args:
            model: A detector or a segmenter.
            source: A folder, or scenes.
            split: train or val.
        """
        found = open_scenes(source, split, self.wanted(model))
        if getattr(model, "num_classes", found.num_classes) != found.num_classes:
            raise ValueError(
                f"{found.name} has {found.num_classes} classes, but the model has {model.num_classes}; "
                f"make it with classes={found.num_classes}"
            )
        return found

    def notes(self, data: Scenes) -> list[str]:
        return data.notes()

    def objective(
        self, spec: str | Objective | None, model: nn.Module, teachers: dict[str, nn.Module], named: str, data: Scenes
    ) -> Objective:
        spec = None if spec == "auto" else spec
        if spec is None and named == "auto":
            named = f"{self.terms} + {self.taught}" if teachers else self.terms
        for part in (spec or named).split("+") if not isinstance(spec, Objective) else ():
            if parse_spec(part)[0] not in self.known:
                raise ValueError(f"{self.name} has no objective '{part.strip()}'; it has: {', '.join(self.known)}")
        return choose_objective(spec, model, teachers, named)

    def mixing(
        self, recipe: Recipe, plan: Plan, model: nn.Module, data: Scenes, config: dict[str, Any]
    ) -> Callable[[Batch], Batch]:
        return _as_it_is

    def teachers(
        self, models: dict[str, nn.Module], paths: dict[str, frozenset[str]], config: dict[str, Any], compile: bool
    ) -> Teachers:
        return Teachers(models, paths, config, compile, self.view, any_size=True)

    def sample(self, model: nn.Module, data: Scenes, count: int, seed: int) -> Tensor:
        config = self.view(model)
        mean, std = ([*config[key]] for key in ("mean", "std"))
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).tolist()
        seen: list[Tensor] = []
        for index in order[: max(1, count // LARGER)]:
            try:
                picture, _ = data.picture(index)
            except UNREADABLE as error:
                data.damage.add(data.filename(index), str(error))
                continue
            image = F.to_dtype(F.to_image(picture), torch.float32, scale=True)
            image = F.resize(image, list(config["input_size"][1:]), antialias=True)
            seen.append(F.normalize(image, mean, std).as_subclass(Tensor))
        return torch.stack(seen)

    def agreement(self, model: nn.Module, teacher: nn.Module, images: Tensor) -> dict[str, float]:
        return {}

    def pictures(self, model: nn.Module, data: Scenes, found: Any, folder: Path) -> None:
        ranked = found.ranked()
        most = min(SHOWN, (len(ranked) + 1) // 2)
        shown = {"good": ranked[:most], "bad": ranked[most:][::-1][:SHOWN]}
        for kind, indices in shown.items():
            for number, index in enumerate(indices, 1):
                drawn, quality = self.draw(model, data, index), found.qualities[index]
                words = f"{BEST if kind == 'good' else WORST} answered ({quality:.0%}), {drawn.words}"
                dataclasses.replace(drawn, words=words).save(folder / "pictures" / f"{kind}_{number}.png")

    def draw(self, model: nn.Module, data: Scenes, index: int) -> Any:
        """A drawing of what is to be found in a picture beside what the model finds.

        Args:
            model: The model.
            data: The scenes.
            index: Which of them.
        """
        raise NotImplementedError


def _as_it_is(batch: Batch) -> Batch:
    return batch


def shown_scenes(data: Scenes, view: SceneView, how: Conditions) -> Iterator[list[Shown]]:
    """All scenes in order, as many at a time as suit the device where nobody says how many.

    Args:
        data: The scenes.
        view: What the model sees of a picture.
        how: Under which conditions.
    """
    size = how.batch_size or default_batch(how.device)
    return evaluation_scenes(data, view, how.device, size, how.workers, *how.share)


def default_batch(device: torch.device) -> int:
    """Images at a time where nobody says how many."""
    return ON_CPU if device.type == "cpu" else ON_GPU
