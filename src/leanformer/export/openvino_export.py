"""OpenVINO: an .xml file with its weights in a .bin beside it.

On CPUs with bf16 OpenVINO computes in bf16 unless told otherwise. The comparison is made in f32; what bf16 costs is
reported beside it.
"""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..core import input_of, plain_of
from .parity import inputs, relative_error
from .preprocess import Preprocessed
from .source import Exported, export
from .target import Run, Target


def to_openvino(model: nn.Module, path: str | Path, **options: Any) -> Exported:
    """Write an OpenVINO model for any batch size and compare it with the model in f32; see `export`.

    >>> import leanformer as lf
    >>> lf.export.openvino(lf.create("deit_tiny_patch16_224"), "lean.xml").notes["bf16_error"]  # doctest: +SKIP
    0.0089
    """
    done = export(model, path, OPENVINO, **options)
    return dataclasses.replace(done, notes={**done.notes, "bf16_error": _bf16_error(model, done.path, **options)})


@torch.no_grad()
def _bf16_error(
    model: nn.Module,
    path: Path,
    preprocess: tuple[int, int] | None = None,
    images: Tensor | None = None,
    size: tuple[int, int] | None = None,
    **options: Any,
) -> float | None:
    """The largest relative error when OpenVINO computes in bf16; None where the CPU has none."""
    if "BF16" not in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return None
    given = copy.deepcopy(plain_of(model)).cpu().eval()
    shape = input_of(given)["input_size"]
    shape = shape if size is None else (shape[0], *size)
    if preprocess is not None:
        given, shape = Preprocessed(given, preprocess), (shape[0], *preprocess)
    run = open_openvino(path, "bf16")
    return max(relative_error(given(x), run(x)) for x in inputs(given, shape, images).values())


def _write(program: ExportedProgram, path: Path, metadata: dict[str, str]) -> None:
    import openvino

    converted = openvino.convert_model(program)
    converted.inputs[0].get_tensor().set_names({"images"})
    converted.outputs[0].get_tensor().set_names({"logits"})
    for key, value in metadata.items():
        converted.set_rt_info(json.dumps(json.loads(value)), key)
    openvino.save_model(converted, path, compress_to_fp16=False)


def open_openvino(path: Path, precision: str = "f32") -> Run:
    """An OpenVINO model on the CPU, computed in `precision` (f32 or bf16) on as many threads as PyTorch has."""
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = _core().compile_model(_core().read_model(path), "CPU", settings)

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(compiled(images.numpy())[0].copy())

    return run


def _core() -> Any:
    import openvino

    return openvino.Core()


OPENVINO = Target(
    name="openvino",
    suffix=".xml",
    runtime="openvino",
    write=_write,
    open=open_openvino,
    packages=("openvino",),
    extra="openvino",
)
