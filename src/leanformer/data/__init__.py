"""Images: where they come from, how they are read, augmented, and shown to a model for evaluation."""

from .dense import IGNORED, Scenes, Target, scenes_of
from .dense_open import open_scenes
from .samples import sample_images
from .sources import Arrays, Data, Files, Source, Stream, check_fit, open_data
from .view import EvaluationView

__all__ = [
    "IGNORED",
    "Arrays",
    "Data",
    "EvaluationView",
    "Files",
    "Scenes",
    "Source",
    "Stream",
    "Target",
    "check_fit",
    "open_data",
    "open_scenes",
    "sample_images",
    "scenes_of",
]
