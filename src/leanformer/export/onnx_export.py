"""ONNX, computed by ONNX Runtime. The card stands in the file's metadata under "leanformer"."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..core import HasFixedPass, plain_of
from .source import Exported, export
from .target import Run, Target

OPSET = 20
"""The operator set that is written by default: the oldest with all that is needed (gelu among it)."""


def to_onnx(model: nn.Module, path: str | Path, *, opset: int = OPSET, **options: Any) -> Exported:
    """Write an ONNX file for any batch size and compare it with the model in ONNX Runtime; see `export`.

    A detector goes through `detector_to_onnx`, whose options it takes; its file takes images of any size, or of
    `size=(height, width)`. A segmenter's takes those of the size on its card, of `size=(height, width)`, or with
    `size="any"` of any.

    >>> import leanformer as lf
    >>> lf.export.onnx(lf.create("deit_tiny_patch16_224"), "lean.onnx").parity.error  # doctest: +SKIP
    1.1e-06
    """
    if isinstance(plain_of(model), HasFixedPass):  # what is found has no fixed shape
        from .detection import detector_to_onnx

        ONNX.require()
        ONNX.check_name(Path(path))
        if options.pop("preprocess", None) is not None:
            raise ValueError("preprocess is for classifiers: a detector's file resizes and normalises by itself")
        return detector_to_onnx(plain_of(model), Path(path), opset=opset, **options)
    return export(model, path, ONNX, opset=opset, **options)


def _write(program: ExportedProgram, path: Path, metadata: dict[str, str], opset: int = OPSET) -> None:
    example = next(node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs)
    free = [axis for axis, side in enumerate(example.meta["val"].shape) if not isinstance(side, int)]
    axes = {axis: ("batch", "channels", "height", "width")[axis] for axis in free}
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["logits"], "dynamic_shapes": (axes,)}
    written = torch.onnx.export(program, dynamo=True, opset_version=opset, verbose=False, **names)
    assert written is not None
    written.model.metadata_props.update(metadata)
    written.model.producer_name = "leanformer"
    written.save(path, external_data=False)


def open_session(path: Path) -> Any:
    """A session of ONNX Runtime, on as many threads as PyTorch has.

    Args:
        path: An ONNX file.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])


def is_detector(session: Any) -> bool:
    """Whether a session is of a detector's file.

    Args:
        session: What `open_session` gave.
    """
    return {"boxes", "labels", "scores"} <= {output.name for output in session.get_outputs()}


def open_onnx(path: Path) -> Run:
    """An ONNX file as a function from images to logits."""
    session = open_session(path)
    if is_detector(session):
        raise ValueError("it holds a detector, which lf.export.open_detector opens")
    name = session.get_inputs()[0].name

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: images.numpy()})[0])

    return run


ONNX = Target(
    name="onnx",
    suffix=".onnx",
    runtime="onnxruntime",
    write=_write,
    open=open_onnx,
    packages=("onnx", "onnxscript", "onnxruntime"),
    extra="onnx",
    dtypes=(torch.float32, torch.float16),
)
