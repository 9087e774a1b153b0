"""The public names of this room, imported when the first of them is asked for."""

from .batching import Batcher, Full
from .dense import ServedDense
from .images import Decoder, Refused
from .limits import Limits
from .model import Answer, Served, of_file, of_model
from .onnx_file import OnnxFile
from .reload import Watched
from .servable import Servable
from .triton import write_repository

__all__ = [
    "Answer",
    "Batcher",
    "Decoder",
    "Full",
    "Limits",
    "OnnxFile",
    "Refused",
    "Servable",
    "Served",
    "ServedDense",
    "Watched",
    "of_file",
    "of_model",
    "write_repository",
]
