"""fit: one loop for every model, method and objective, from one CPU to many accelerators."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core import Objective, check_whole, input_of
from ..data.kinds import same_images
from ..data.sources import Source
from .answer_form import answers_as_before
from .folder import hold
from .learner import check_teachers, in_their_roles
from .loop import Run
from .parallel import accelerator_for
from .recipe import Recipe
from .result import Result
from .runs import Settings, start_run
from .state import restore
from .task import Task
from .token_labels import Annotator


def fit(
    model: nn.Module,
    *,
    recipe: Recipe,
    data: Source | Any,
    val: Source | Any | None = None,
    teacher: nn.Module | dict[str, nn.Module] | None = None,
    objective: str | Objective | None = None,
    task: Task | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    settings: Settings | None = None,
    **options: Any,
) -> Result:
    """Train `model` (it is changed itself) and return it with its evaluations.

    `data` names a data set with the splits train and val, or only the training images when `val` is given too.
    Without a teacher the objective is cross-entropy; with one, the methods' own or soft distillation with labels, or
    soft distillation alone where the images have no labels. A backbone without a head learns the teacher's features;
    labels, where there are some, are then used to judge it by neighbours and for nothing else.
    A student that starts from a teacher (`lf.apply` made it from that one) is calibrated on `Settings.calibrate` images
    before the first update, and the log says what accuracy it starts from.

    Args:
        model: The student.
        recipe: All that decides the numbers of the run but model, teacher and data.
        data: A data set with the splits train and val, or only the training images when `val` is given too.
        val: Images for validation.
        teacher: One teacher, or several by the names that the objective knows them by.
        objective: Terms as in `cross_entropy + soft:temperature=2`, or an objective; the recipe's by default.
        task: What is learnt: classification by default; `lf.tasks` has the others, and a `fit` that knows them.
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
    work = task or Task()

    def prepare() -> Job:
        train_data, val_data = work.open(model, data, val, recipe, settings)
        chosen = work.objective(objective, model, teachers, recipe.objective, train_data)
        known = in_their_roles(chosen, teachers)
        check_teachers(chosen, known, model)
        named = objective if isinstance(objective, str) else repr(objective) if objective else recipe.objective
        return Job(train_data, val_data, chosen, _located_labels(named), source_names(data, val), known, work)

    with answers_as_before(model) as copies:
        result = carry_out(model, recipe, settings, folder, resume, prepare)
        copies += [each for each in (result.model, result.ema) if each is not None]
    return result


@dataclass(frozen=True)
class Job:
    """What a run learns: from which images, by which objective, with which teachers."""

    data: Any
    val: Any
    objective: Objective
    named: str
    """The objective as the run folder writes it down."""
    sources: dict[str, str]
    """The names of the data, as the run folder writes them down."""
    teachers: dict[str, nn.Module] = field(default_factory=dict)
    task: Task = Task()  # noqa: RUF009


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
        _check_models(model, job.teachers)
        if held.state is None and folder is not None and accelerator.is_main_process:
            plain = {name: t.model if isinstance(t, Annotator) else t for name, t in job.teachers.items()}
            start_run(folder, model, plain, recipe, settings, job.sources, job.named, job.task.to_json())
        fresh = held.state is None
        run = Run(
            model, recipe, settings, job.data, job.val, job.teachers, job.objective, folder, accelerator, fresh,
            job.task,
        )  # fmt: skip
        held.run = run
        if held.state is not None:
            restore(run, held.state)
        if settings.tensorboard and folder is not None:
            accelerator.init_trackers("tensorboard")
        return run.train([*held.notes, *(_notes(job) if fresh else ())])


def _check_models(model: nn.Module, teachers: dict[str, nn.Module]) -> None:
    """Refuse weights of types that cannot be trained with, and teachers of images with other channels."""
    channels = input_of(model)["input_size"][0]
    for name, each in {"the model": model, **teachers}.items():
        check_whole(each, name)
        if any(parameter.dtype == torch.float64 for parameter in each.parameters()):
            raise ValueError(f"the weights of {name} are torch.float64, but images come in float32; call its .float()")
        if (theirs := input_of(each)["input_size"][0]) != channels:
            raise ValueError(f"the teacher '{name}' takes images of {theirs} channels, but the model of {channels}")


def _notes(job: Job) -> list[str]:
    """What the log should say of the data."""
    same = job.val is not None and same_images(job.data, job.val)
    return [*job.task.notes(job.data), *(["the images for validation are those that are learnt from"] if same else [])]


def source_names(data: Any, val: Any) -> dict[str, str]:
    """The data sources as `--resume` can open them again, from whatever folder; tensors have no name."""
    return {
        key: _located(os.fspath(source))
        for key, source in (("train", data), ("val", val))
        if isinstance(source, str | os.PathLike)
    }


def _located(source: str) -> str:
    """A source with its path made absolute, also behind the word that says of which kind it is."""
    kind = re.match(r"([A-Za-z_]\w*:|hfds/|wds/)?", "" if os.path.exists(source) else source)[0]  # type: ignore[index]
    path = source.removeprefix(kind)
    # a pack may be named by the beginning of its files' names
    there = os.path.exists(path) or (kind == "pack:" and os.path.isdir(os.path.dirname(path) or "."))
    return f"{kind}{os.path.abspath(path)}" if there else source


def _located_labels(objective: str) -> str:
    """An objective as text, the folders of its label maps made absolute.

    >>> _located_labels("token_labels:labels=/maps,weight=0.5 + cross_entropy")
    'token_labels:labels=/maps,weight=0.5 + cross_entropy'
    """
    return re.sub(r"\blabels=([^,+\s]+)", lambda found: f"labels={_located(found[1])}", objective)
