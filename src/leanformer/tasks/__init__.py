"""What differs between one kind of training and another: what a batch is, its loss, how a model is judged."""

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from . import dino
    from .detectors import detector
    from .segmenters import segmenter
else:
    __getattr__, _ = lazy_attributes(__name__, detector="detectors:detector", segmenter="segmenters:segmenter")

__all__ = ["detector", "dino", "segmenter"]
