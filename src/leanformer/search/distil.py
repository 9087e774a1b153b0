"""The plan's model, calibrated and distilled: soft answers of the teacher on the images for training, no labels.

Before one plan is trained to the end, the best of several families can be tried: each is trained for a few updates.
What tokens that are dropped or merged lose comes back in training, what smaller images lose does not; only a trial
tells.
"""

import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..core import Objective, apply, calibrate
from ..data.samples import sample_images
from ..data.sources import Data
from ..train import Recipe, Result, fit, quick_precision
from ..train.finetune import finetune
from .parts import Parts, some
from .plan import Plan
from .progress import Progress
from .target import Options

PACE = 6
"""Updates by which the pace of training is found."""
LARGE_BATCH, RATE = 256, 1e-4
"""The largest batch and its learning rate; that of a smaller batch falls with the root of its size: at the rate of the
large one a hundred updates of 32 images took a ViT-Ti further from its teacher, at a third of it nearer."""
TRIAL_SHARE = 0.2
"""Share of the training's updates that trials take, all together."""
TRIAL_UPDATES = (20, 200)
"""Updates of one trial: with fewer there is none, and more are not needed."""


class Interrupted(KeyboardInterrupt):
    """The user asked to stop; what is trained so far lies in the folder."""


@dataclass
class Distiller:
    """Trains students of one teacher.

    Attributes:
        teacher: the unchanged model.
        parts: images for choosing, training and judging.
        options: how the job is done.
        progress: where people are told.
    """

    teacher: nn.Module
    parts: Parts
    options: Options
    progress: Progress

    def view(self, model: nn.Module) -> Tensor:
        """The images for choosing, as a model of this size sees them."""
        return sample_images(model, self.parts.choosing, len(self.parts.choosing), seed=self.options.seed)

    def fitting(self, model: nn.Module, images: int) -> Tensor:
        """Some of the images for training, to which modules are fitted, as a model of this size sees them."""
        return sample_images(model, self.parts.training, images, seed=self.options.seed)

    def calibrated(self, plan: Plan) -> nn.Module:
        """The plan's model, fitted to the teacher and not trained."""
        student = plan.build(self.teacher.cpu())
        if not plan.shares:
            return student
        images = self.fitting(student, len(self.parts.choosing))
        return calibrate(student, Plan(plan.size).build(self.teacher), images)

    def distilled(
        self, student: nn.Module, entries: dict[str, Any], folder: Path | None, objective: str | Objective = "soft"
    ) -> nn.Module:
        """The student trained to the end, or from where the run in the folder stopped.

        Args:
            student: a plan's model, not trained.
            entries: what is known of this plan; how long it is trained is written here.
            folder: for checkpoints; None: nothing is written.
            objective: what is learnt from the teacher.
        """
        training, recipe = self.affordable(student, entries)
        result = self._fit(student, training, recipe, folder, objective=objective, quiet=not self.progress.prints)
        if not result.finished:
            raise Interrupted
        entries["start"] = result.start
        return (result.ema if result.ema is not None else result.model).eval()

    def trial_updates(self, plans: int, student: nn.Module, entries: dict[str, Any]) -> int:
        """For how many updates each of so many plans can be tried; 0 where that would tell nothing.

        Args:
            plans: how many.
            student: the model of one of them.
            entries: what is known of this target.
        """
        if plans < 2:
            return 0
        self.affordable(student, entries)
        updates = int(TRIAL_SHARE * (self.updates(entries) or 0) / plans)
        return min(updates, TRIAL_UPDATES[1]) if updates >= TRIAL_UPDATES[0] else 0

    def tried(self, plan: Plan, updates: int) -> nn.Module:
        """The plan's model after so many updates, the learning rate at its end."""
        recipe = self.recipe(len(self.parts.training))
        images = min(len(self.parts.training), updates * recipe.batch_size)
        epochs = max(1, math.ceil(updates / max(1, images // recipe.batch_size)))
        short = recipe.replace(epochs=epochs, warmup_epochs=0.1 * epochs)
        result = self._fit(plan.build(self.teacher.cpu()), some(self.parts.training, list(range(images))), short)
        if not result.finished:
            raise Interrupted
        return result.model.eval()

    def updates(self, entries: dict[str, Any]) -> int | None:
        """How many updates the training has; None where the minutes have not been turned into updates yet.

        Args:
            entries: what is known of this plan.
        """
        training, recipe = self.parts.training, self.recipe(len(self.parts.training))
        if self.options.minutes is None:
            return recipe.epochs * (len(training) // recipe.batch_size)
        found = entries.get("training")
        return None if found is None else found["epochs"] * (found["images"] // recipe.batch_size)

    def recipe(self, images: int) -> Recipe:
        """Soft answers on mixtures of images at a low rate: what kept most of a ViT on unlabelled photographs."""
        if self.options.recipe is not None:
            return self.options.recipe
        epochs = self.options.epochs or 10
        batch = max(2, min(LARGE_BATCH, images // 8 // 2 * 2))
        rate = RATE * math.sqrt(batch / LARGE_BATCH)
        return finetune(
            epochs=epochs, batch_size=batch, learning_rate=rate, ema=None, mixup=0.8, cutmix=0.0, auto_augment=None,
            label_smoothing=0.0, warmup_epochs=min(1, epochs / 5),
        )  # fmt: skip

    def affordable(self, student: nn.Module, entries: dict[str, Any]) -> tuple[Data, Recipe]:
        """Images and recipe of the training; what a number of minutes pays for is found once and written down."""
        training, recipe = self.parts.training, self.recipe(len(self.parts.training))
        if self.options.minutes is None:
            return training, recipe
        if "training" not in entries:
            seconds = (1 - TRIAL_SHARE) * 60 * self.options.minutes
            updates = max(1, int(seconds / self._pace(student, recipe)))
            epochs = max(1, math.ceil(updates * recipe.batch_size / len(training)))
            images = min(len(training), max(1, updates // epochs) * recipe.batch_size)
            entries["training"] = {"images": images, "epochs": epochs}
        found = entries["training"]
        epochs, warmup = found["epochs"], min(recipe.warmup_epochs, found["epochs"] / 5)
        return some(training, list(range(found["images"]))), recipe.replace(epochs=epochs, warmup_epochs=warmup)

    def _pace(self, student: nn.Module, recipe: Recipe) -> float:
        """Seconds an update, by a few of them on a copy; with what it takes to begin, so rather too many."""
        began = time.perf_counter()
        result = self._fit(copy.deepcopy(student), self.parts.training, recipe, max_updates=PACE)
        if not result.finished:
            raise Interrupted
        return (time.perf_counter() - began) / result.updates

    def _fit(
        self,
        student: nn.Module,
        data: Data,
        recipe: Recipe,
        folder: Path | None = None,
        objective: str | Objective = "soft",
        quiet: bool = True,
        max_updates: int | None = None,
    ) -> Result:
        device = self.options.place.device
        return fit(
            student, recipe=recipe, data=data, teacher={"teacher": apply(self.teacher.cpu())}, objective=objective,
            output=folder, resume=folder is not None and folder.exists(), seed=self.options.seed,
            device=str(device), precision=quick_precision(student, device), evaluate_every=0,
            quiet=quiet, max_updates=max_updates, calibrate=len(self.parts.choosing),
        )  # fmt: skip
