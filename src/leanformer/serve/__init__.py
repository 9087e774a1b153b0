"""A served model: images come in over HTTP, classes and kept patches go out.

    body → limits → decode → resize, crop, normalise → queue → batch → model → classes

The web framework is imported by `app` alone, so that everything else works without it.
"""

from .batching import Batcher, Full
from .images import Decoder, Refused
from .limits import Limits
from .model import Answer, Served, of_file, of_model
from .onnx_file import OnnxFile
from .triton import write_repository

__all__ = [
    "Answer",
    "Batcher",
    "Decoder",
    "Full",
    "Limits",
    "OnnxFile",
    "Refused",
    "Served",
    "of_file",
    "of_model",
    "write_repository",
]
