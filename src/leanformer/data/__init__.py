"""Images: where they come from, how they are read, augmented, and shown to a model for evaluation."""

from .packs import write_pack
from .samples import sample_images
from .sources import Arrays, Data, Files, Source, Stream, check_fit, open_data
from .view import EvaluationView

__all__ = [
    "Arrays",
    "Data",
    "EvaluationView",
    "Files",
    "Source",
    "Stream",
    "check_fit",
    "open_data",
    "sample_images",
    "write_pack",
]
