"""fit and evaluate for every task: the task is that of the model."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..core import classes_of
from ..core.spec import parse_spec
from ..data.dense import Scenes
from ..train import Recipe, Result, engine
from ..train.evaluation import Conditions
from ..train.task import Task
from . import dense_distillation  # noqa: F401  (its objectives get their names)
from .dense import DenseTask
from .detection import Detection
from .segmentation import Segmentation

TASKS: dict[str, type[Task]] = {"classification": Task, "detection": Detection, "segmentation": Segmentation}


def parse_task(spec: str) -> Task:
    """A task as the command line writes it: `name` or `name:option=value,option=value`.

    >>> parse_task("segmentation:size=(352,480)").size
    (352, 480)
    """
    name, options = parse_spec(spec)
    if name not in TASKS:
        raise ValueError(f"unknown task '{name}'; known: {', '.join(TASKS)}")
    try:
        return TASKS[name](**options)
    except TypeError as error:
        raise ValueError(f"task {name}: {error}") from error


def task_from(found: dict[str, Any] | None) -> Task:
    """The task that `Task.to_json` wrote down; classification where nothing was."""
    options = dict(found or {})
    name = str(options.pop("name", "classification"))
    if name not in TASKS:
        raise ValueError(f"unknown task '{name}'; known: {', '.join(TASKS)}")
    try:
        return TASKS[name](
            **{key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        )
    except TypeError as error:
        raise ValueError(f"task {name}: {error}") from error


def task_of(model: nn.Module) -> Task:
    """The task that a model is made for: detectors have heads for regions or anchors, segmenters a decoder.

    Args:
        model: Any leanformer model.
    """
    if hasattr(model, "roi_heads") or hasattr(model, "anchor_generator"):
        return Detection()
    return Segmentation() if hasattr(model, "decoder") else Task()


def fit(model: nn.Module, *, recipe: Recipe, data: Any, task: Task | None = None, **options: Any) -> Result:
    """Train a classifier, a detector or a segmenter: `lf.train.fit` with the task of the model.

    Args:
        model: The student.
        recipe: All that decides the numbers of the run but model, teacher and data.
        data: For detectors and segmenters a folder of COCO, VOC, Pets, CamVid or label maps, or `Scenes`.
        task: By default the model's own, with its default options.
        options: What `lf.train.fit` takes beside these.
    """
    return engine.fit(model, recipe=recipe, data=data, task=task or task_of(model), **options)


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    task: DenseTask | None = None,
    split: str = "val",
    batch_size: int | None = None,
    device: str | None = None,
    precision: str = "no",
    workers: int | None = None,
) -> Any:
    """Judge a detector by COCO's average precision, or a segmenter by its mean intersection over union.

    Args:
        model: A detector or a segmenter; for classifiers there is `lf.train.evaluate`.
        data: A folder of COCO, VOC, Pets, CamVid or label maps, or `Scenes`.
        task: By default the model's own, with its default options.
        split: Which part of the data.
        batch_size: Images at a time; by default 2 on a CPU and else 8.
        device: cpu, cuda, …; the fastest there is by default.
        precision: no, bf16 or fp16.
        workers: Processes that read files; by default as many as there are cores.

    Raises:
        ValueError: The data have other classes than the model, the same ones in another order, or nothing to judge by.
    """
    chosen = task or task_of(model)
    if not isinstance(chosen, DenseTask):
        raise ValueError(f"{type(model).__name__} is a classifier: lf.train.evaluate judges it")
    how = Conditions.on(device, batch_size, precision, workers)
    scenes = chosen.scenes(model, data, split)
    _check_order(classes_of(model) or (), scenes)
    found = chosen.measure(model.to(how.device), scenes, chosen.view(model), how)
    if not found.summary():
        raise ValueError(f"no picture of {scenes.name} has an object that counts, so there is nothing to judge")
    return found


def _check_order(known: Sequence[str], scenes: Scenes) -> None:
    """Refuse data that number a class otherwise than the model that knows it by the same name."""
    for number, name in enumerate(known):
        if name in scenes.classes and scenes.classes[number : number + 1] != (name,):
            other = scenes.classes.index(name)
            raise ValueError(
                f"the class '{name}' is number {number} of the model and number {other} of {scenes.name}, so that "
                "every answer would be taken for another class; the data must list their classes in the model's order"
            )
