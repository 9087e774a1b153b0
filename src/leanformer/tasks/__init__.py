"""What differs between one kind of training and another: what a batch is, its loss, how a model is judged."""

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from . import dino
    from .classification import Classification
    from .detection import Detection
    from .detectors import detector
    from .fitting import evaluate, fit, parse_task, task_of
    from .segmentation import Segmentation
    from .segmenters import segmenter
else:
    __getattr__, _ = lazy_attributes(
        __name__,
        Classification="classification:Classification",
        Detection="detection:Detection",
        Segmentation="segmentation:Segmentation",
        detector="detectors:detector",
        evaluate="fitting:evaluate",
        fit="fitting:fit",
        parse_task="fitting:parse_task",
        segmenter="segmenters:segmenter",
        task_of="fitting:task_of",
    )

__all__ = [
    "Classification",
    "Detection",
    "Segmentation",
    "detector",
    "dino",
    "evaluate",
    "fit",
    "parse_task",
    "segmenter",
    "task_of",
]
