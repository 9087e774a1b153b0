"""A model repository for NVIDIA's Triton Inference Server, with dynamic batching.

FOLDER/NAME/config.pbtxt      input, output, batching; the card under parameters
FOLDER/NAME/labels.txt        one class a line
FOLDER/NAME/1/model.onnx
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..core import write_atomically
from .onnx_file import OnnxFile

TYPES = {"FLOAT": "TYPE_FP32", "FLOAT16": "TYPE_FP16", "UINT8": "TYPE_UINT8"}
"""ONNX's element types → Triton's."""


def write_repository(
    folder: str | os.PathLike[str],
    name: str,
    file: OnnxFile,
    classes: Sequence[str],
    *,
    max_batch: int = 16,
    max_wait: float = 0.005,
) -> Path:
    """Write the folder of one model into a model repository and return it.

    >>> write_repository("models", "lean", OnnxFile.read("lean.onnx"), names)  # doctest: +SKIP
    PosixPath('models/lean')
    """
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ValueError(f"'{name}' cannot be a folder of a model repository; use letters, digits, _, - and .")
    if len(classes) != file.output_dims[-1]:
        raise ValueError(f"{file.path} has {file.output_dims[-1]} classes, but there are {len(classes)} names")
    place = Path(folder) / name
    try:
        (place / "1").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {place}: {error.strerror}") from error
    write_atomically(place / "1" / "model.onnx", lambda temporary: shutil.copyfile(file.path, temporary))
    labels = "".join(f"{' '.join(label.split())}\n" for label in classes)
    write_atomically(place / "labels.txt", lambda temporary: Path(temporary).write_text(labels, encoding="utf-8"))
    text = config(name, file, max_batch, max_wait)
    write_atomically(place / "config.pbtxt", lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))
    return place


def config(name: str, file: OnnxFile, max_batch: int, max_wait: float) -> str:
    """The text of config.pbtxt: dims without the batch axis, which Triton adds itself."""
    preferred = sorted({size for size in (4, 8, 16, 32) if size < max_batch} | {max_batch})
    return f"""\
name: {_quoted(name)}
platform: "onnxruntime_onnx"
max_batch_size: {max_batch}
input [
  {{
    name: {_quoted(file.input_name)}
    data_type: {TYPES[file.input_type]}
    dims: [ {_listed(file.input_dims)} ]
  }}
]
output [
  {{
    name: {_quoted(file.output_name)}
    data_type: {TYPES[file.output_type]}
    dims: [ {_listed(file.output_dims)} ]
    label_filename: "labels.txt"
  }}
]
dynamic_batching {{
  preferred_batch_size: [ {_listed(preferred)} ]
  max_queue_delay_microseconds: {round(max_wait * 1e6)}
}}
parameters {{
  key: "leanformer"
  value {{ string_value: {_quoted(json.dumps(file.card))} }}
}}
"""


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
