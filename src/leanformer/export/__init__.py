"""Export: the fused model leaves Python and still gives the same answers, proven before the file gets its name.

Each target's packages are imported only when it is asked for.
"""

from collections.abc import Callable
from pathlib import Path

from torch import nn

from ..core.files import check_file
from .aoti_export import AOTI
from .aoti_export import to_aoti as aoti
from .detection import open_detector
from .executorch_export import EXECUTORCH
from .executorch_export import to_executorch as executorch
from .onnx_export import ONNX, OPSET
from .onnx_export import to_onnx as onnx
from .openvino_export import OPENVINO
from .openvino_export import to_openvino as openvino
from .parity import Drift, Parity
from .quantisation import quantise
from .source import Exported, Unfused
from .target import Run, Target
from .torch_export import TORCH
from .torch_export import to_torch as torch

FORMATS = {"onnx": onnx, "openvino": openvino, "torch": torch, "aoti": aoti, "executorch": executorch}
"""Format → the function that writes it."""
TARGETS = {target.name: target for target in (ONNX, OPENVINO, TORCH, AOTI, EXECUTORCH)}
RUNTIMES = {target.runtime: target for target in TARGETS.values()}


def open_file(path: str | Path) -> Run:
    """An exported file as a function from images to logits, computed by its own runtime on the CPU.

    >>> open_file("lean.onnx")(images)  # doctest: +SKIP
    """
    path = Path(path)
    found = [target for target in TARGETS.values() if path.name.endswith(target.suffix)]
    if not found:
        known = ", ".join(target.suffix for target in TARGETS.values())
        raise ValueError(f"{path} is of no known format; known endings: {known}")
    check_file(path)
    target = max(found, key=lambda target: len(target.suffix))
    target.require()
    try:
        return target.open(path)
    except Exception as error:  # each runtime has its own errors for a file that is damaged
        raise ValueError(f"{target.runtime} cannot open {path}: {str(error)[:300]}") from error


def runtime_opener(runtime: str, folder: str | Path, fused: bool = True) -> Callable[[nn.Module], Run]:
    """A function that exports a model, compared with PyTorch as every export, and opens it in a runtime.

    Args:
        runtime: onnxruntime, openvino, torch, aoti or executorch.
        folder: where the exported files go.
        fused: fuse a model with methods first.

    Raises:
        ValueError: for an unknown runtime, or one whose packages are not installed.

    >>> runtime_opener("onnxruntime", "exported")(model)(images)  # doctest: +SKIP
    """
    if runtime not in RUNTIMES:
        raise ValueError(f"unknown runtime '{runtime}'; known: {', '.join(RUNTIMES)}")
    target = RUNTIMES[runtime]
    target.require()

    def opened(model: nn.Module) -> Run:
        path = Path(folder) / f"{len(list(Path(folder).iterdir()))}{target.suffix}"
        return target.open(FORMATS[target.name](model, path, fused=fused).path)

    return opened


__all__ = [
    "FORMATS",
    "OPSET",
    "RUNTIMES",
    "TARGETS",
    "Drift",
    "Exported",
    "Parity",
    "Run",
    "Target",
    "Unfused",
    "aoti",
    "executorch",
    "onnx",
    "open_detector",
    "open_file",
    "openvino",
    "quantise",
    "runtime_opener",
    "torch",
]
