"""What `leanformer train` does for detectors and segmenters: the task, the model around the backbone, its teachers."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from ..tasks.dense import DenseTask


@dataclass(frozen=True)
class Dense:
    """A dense task, and what the backbone is put into, as the command line writes it; '' where it is in it already."""

    task: DenseTask
    model: str = ""

    @staticmethod
    def asked_for(task: str, detector: str | None, segmenter: str | None) -> Dense | None:
        """What the options ask for; None for classification.

        Args:
            task: What was given as --task.
            detector: What was given as --detector.
            segmenter: What was given as --segmenter.
        """
        from ..tasks.dense import DenseTask
        from ..tasks.fitting import parse_task

        if task == "classification" and (detector or segmenter):
            task = "detection" if detector else "segmentation"
        chosen = parse_task(task)
        wrong = {"detection": ("segmenter", segmenter), "segmentation": ("detector", detector)}.get(chosen.name)
        if wrong is not None and wrong[1] is not None:
            raise ValueError(f"--{wrong[0]} does not belong to --task {chosen.name}")
        return Dense(chosen, detector or segmenter or "") if isinstance(chosen, DenseTask) else None

    @staticmethod
    def of(model: nn.Module) -> Dense | None:
        """The task that a model is made for; None where that is classification.

        Args:
            model: The model that was named.
        """
        from ..tasks.dense import DenseTask
        from ..tasks.fitting import task_of

        task = task_of(model)
        return Dense(task) if isinstance(task, DenseTask) else None

    def around(self, model: nn.Module, data: str, classes: int | None) -> nn.Module:
        """The model that is trained: the backbone in its detector or segmenter.

        Args:
            model: A backbone, or a detector or segmenter that was loaded.
            data: The data, which say how many classes there are.
            classes: How many; None: as many as the data have.
        """
        from ..core.spec import parse_spec, refuse_unknown
        from ..data.dense_open import open_scenes

        own: Any = Dense.of(model)
        if own is not None and own.task.name != self.task.name:
            raise ValueError(f"the model is a {type(model).__name__}, made for {own.task.name}, not {self.task.name}")
        if own is not None and self.model:
            raise ValueError(f"the model is a {type(model).__name__} already: leave --detector and --segmenter out")
        if own is not None and classes not in (None, model.num_classes):
            raise ValueError(
                f"the model is a {type(model).__name__} of {model.num_classes} classes: leave --classes out"
            )
        if own is not None:
            return model
        if not self.model:
            option = "--detector retinanet" if self.task.name == "detection" else "--segmenter fpn"
            raise ValueError(f"--task {self.task.name} needs {option} (or another), or a model that is one already")
        name, options = parse_spec(self.model)
        if classes is None:
            wanted = "label_map" if self.task.name == "segmentation" else "masks" if name == "mask_rcnn" else "boxes"
            classes = open_scenes(data, "val", wanted).num_classes
        make, known = _maker(self.task.name)
        refuse_unknown(name, options, known)
        return make(name, model, classes=classes, **options)

    def teacher(self, spec: str, start: nn.Module) -> tuple[str, nn.Module]:
        """`role=` and then self (the model before the methods) or a leanformer checkpoint.

        Args:
            spec: What was given as --teacher.
            start: The model before the methods.
        """
        from ..core import apply
        from ..tasks.fitting import task_of
        from .common import open_model

        role, equals, rest = spec.partition("=")
        role, what = (role, rest) if equals and role.isidentifier() else ("teacher", spec)
        found = apply(start) if what == "self" else open_model(what) if what.endswith(".safetensors") else None
        if found is None or task_of(found).name != self.task.name:
            raise ValueError(
                f"the teacher '{what}' is no model for {self.task.name}: give the checkpoint of one, or self where "
                "MODEL is one"
            )
        return role, found


def _maker(task: str) -> tuple[Any, list[str]]:
    """What makes a model around a backbone, and the options that it takes beside backbone and classes."""
    from .. import tasks
    from ..tasks.detector_options import Options

    if task == "detection":
        return tasks.detector, [field.name for field in dataclasses.fields(Options)]
    parameters = inspect.signature(tasks.segmenter).parameters
    return tasks.segmenter, [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
