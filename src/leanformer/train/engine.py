"""fit: one loop for every model, method and objective, from one CPU to many accelerators."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ..core import Objective, set_classes
from ..data.sources import Data, Source, check_fit, check_labelled, open_data
from .folder import hold
from .learner import check_teachers, choose_objective, in_their_roles
from .loop import Run
from .parallel import accelerator_for
from .recipe import Recipe
from .result import Result
from .runs import Settings, start_run
from .state import restore
from .token_labels import Annotator


def fit(
    model: nn.Module,
    *,
    recipe: Recipe,
    data: Source,
    val: Source | None = None,
    teacher: nn.Module | dict[str, nn.Module] | None = None,
    objective: str | Objective | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    settings: Settings | None = None,
    **options: Any,
) -> Result:
    """Train `model` (it is changed itself) and return it with its evaluations.

    `data` names a data set with the splits train and val, or only the training images when `val` is given too.
    Without a teacher the objective is cross-entropy; with one, the methods' own or soft distillation with labels, or
    soft distillation alone where the images have no labels.
    A student that starts from a teacher (`lf.apply` made it from that one) is calibrated on `Settings.calibrate` images
    before the first update, and the log says what accuracy it starts from.

    Args:
        model: The student.
        recipe: All that decides the numbers of the run but model, teacher and data.
        data: A data set with the splits train and val, or only the training images when `val` is given too.
        val: Images for validation.
        teacher: One teacher, or several by the names that the objective knows them by.
        objective: Terms as in `cross_entropy + soft:temperature=2`, or an objective; the recipe's by default.
        output: The run folder; without one nothing is written.
        resume: Let a run found in `output` go on.
        settings: How the run is carried out.
        options: Further settings by name.

    >>> import torch, leanformer as lf
    >>> model = lf.create("vit", img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=1, num_classes=2)
    >>> images, labels = torch.zeros(8, 3, 16, 16, dtype=torch.uint8), torch.arange(8) % 2
    >>> recipe = lf.recipes.plain(epochs=1, batch_size=4)
    >>> lf.train.fit(model, recipe=recipe, data=(images, labels), device="cpu", quiet=True).updates
    2
    """
    settings = (settings or Settings()).replace(**options)
    folder = Path(output) if output is not None else None
    if resume and folder is None:
        raise ValueError("resume needs the run's folder: give output")
    teachers = {} if teacher is None else teacher if isinstance(teacher, dict) else {"teacher": teacher}

    def prepare() -> Job:
        train_data, val_data = _open(model, data, val, settings, recipe)
        chosen = choose_objective(objective, model, teachers, recipe.objective, train_data)
        known = in_their_roles(chosen, teachers)
        check_teachers(chosen, known, model)
        named = objective if isinstance(objective, str) else repr(objective) if objective else recipe.objective
        return Job(train_data, val_data, chosen, named, source_names(data, val), known)

    return carry_out(model, recipe, settings, folder, resume, prepare)


@dataclass(frozen=True)
class Job:
    """What a run learns: from which images, by which objective, with which teachers."""

    data: Data
    val: Data | None
    objective: Objective
    named: str
    """The objective as the run folder writes it down."""
    sources: dict[str, str]
    """The names of the data, as the run folder writes them down."""
    teachers: dict[str, nn.Module] = field(default_factory=dict)


def carry_out(
    model: nn.Module,
    recipe: Recipe,
    settings: Settings,
    folder: Path | None,
    resume: bool,
    prepare: Callable[[], Job],
) -> Result:
    """Train from the first update to the last, or from where the run in the folder stopped.

    Args:
        model: The student, changed itself.
        recipe: All that decides the numbers of the run but model, teacher and data.
        settings: How the run is carried out.
        folder: The run folder; None: nothing is written.
        resume: Let a run found there go on.
        prepare: Opens the data and makes the objective; what it refuses leaves no run folder behind.
    """
    accelerator = accelerator_for(settings, folder)
    with hold(folder, resume, accelerator) as held:
        job = prepare()
        if held.state is None and folder is not None and accelerator.is_main_process:
            plain = {name: t.model if isinstance(t, Annotator) else t for name, t in job.teachers.items()}
            start_run(folder, model, plain, recipe, settings, job.sources, job.named)
        fresh = held.state is None
        run = Run(
            model, recipe, settings, job.data, job.val, job.teachers, job.objective, folder, accelerator, fresh
        )  # fmt: skip
        held.run = run
        if held.state is not None:
            restore(run, held.state)
        if settings.tensorboard and folder is not None:
            accelerator.init_trackers("tensorboard")
        return run.train(held.notes)


def _open(model: nn.Module, data: Source, val: Source | None, settings: Settings, recipe: Recipe) -> tuple[Data, Any]:
    """The training images and, where there are some, those for validation; refused if they do not fit the model."""
    remote = settings.allow_remote
    train_data = open_data(data, "train", settings.seed, recipe.batch_size // settings.accumulate, remote)
    val_data = None
    if val is not None:
        val_data = open_data(val, "val", remote=remote)
    elif isinstance(data, str | os.PathLike) and settings.evaluate_every and train_data.labelled:
        val_data = open_data(data, "val", remote=remote)
    check_fit(model, train_data, val_data)
    train_data.damage.limit = settings.damage_limit
    if train_data.classes is not None:
        set_classes(model, train_data.classes)
    if val_data is not None:
        check_labelled(val_data)
        check_fit(model, val_data)
        val_data.damage.limit = settings.damage_limit
    return train_data, val_data


def source_names(data: Source, val: Source | None) -> dict[str, str]:
    """The data sources as `--resume` can open them again; tensors have no name."""
    return {
        key: os.path.abspath(source) if os.path.exists(source) else str(source)
        for key, source in (("train", data), ("val", val))
        if isinstance(source, str | os.PathLike)
    }
