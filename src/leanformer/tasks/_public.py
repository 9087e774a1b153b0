"""The public names of this room: imported when the first of them is asked for."""

from . import dino
from .classification import Classification
from .detection import Detection
from .detectors import detector
from .fitting import evaluate, fit, parse_task, task_of
from .segmentation import Segmentation
from .segmenters import segmenter

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
