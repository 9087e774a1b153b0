"""Images: where they come from, how they are read, augmented, and shown to a model for evaluation."""

from .samples import sample_images
from .sources import Arrays, Data, Files, Source, Stream, check_fit, open_data

__all__ = ["Arrays", "Data", "Files", "Source", "Stream", "check_fit", "open_data", "sample_images"]
