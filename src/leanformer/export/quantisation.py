"""Quantisation after training: an exported float32 file → a smaller int8 file, by the target's own tools.

    static    weights and activations in int8; the ranges of the activations come from calibration images
    dynamic   weights in int8, activations quantised on the fly: linear layers alone, needs no calibration

Convolutions and products with weights become int8; the products inside attention, the norms and the softmaxes, which
are small and lose most, stay in float. In ONNX files so do the products that int8 would spoil on the calibration
images: for a ViT-Ti it is one of 49, and it is worth 10 points of accuracy.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from .sensitive import sensitive_products
from .target import require, staged

CALIBRATION_BATCH = 8
MODES = ("static", "dynamic")


def quantise(source: str | Path, path: str | Path, *, mode: str = "static", calibration: Tensor | None = None) -> Path:
    """Write an int8 form of an exported .onnx or .xml file. `calibration`: images (n, C, H, W) as the file takes them.

    >>> quantise("lean.onnx", "lean.int8.onnx", calibration=images)  # doctest: +SKIP
    """
    source, path = Path(source), Path(path)
    if mode not in MODES:
        raise ValueError(f"unknown mode '{mode}' of quantisation; known: {', '.join(MODES)}")
    if not source.is_file():
        raise ValueError(f"{source} does not exist")
    if path.suffix != source.suffix:
        raise ValueError(f"the int8 form of {source} is again a {source.suffix} file, not '{path.name}'")
    if mode == "static" and (calibration is None or not len(calibration)):
        raise ValueError("static quantisation needs calibration images; a few hundred are enough")
    if source.suffix == ".onnx":
        require(("onnx", "onnxruntime"), "onnx", "int8 ONNX")
        write = _onnx_static if mode == "static" else _onnx_dynamic
    elif source.suffix == ".xml" and mode == "static":
        require(("openvino", "nncf"), "openvino", "int8 OpenVINO")
        write = _openvino_static
    else:
        raise ValueError(f"{mode} int8 is not there for {source.suffix} files; static: .onnx, .xml; dynamic: .onnx")
    with staged(path) as temporary:
        write(source, temporary, calibration)
    return path


def _onnx_static(source: Path, path: Path, calibration: Tensor | None) -> None:
    import onnxruntime.quantization as ort
    from onnxruntime.quantization.shape_inference import quant_pre_process

    assert calibration is not None
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.onnx"
        quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
        ort.quantize_static(
            str(ready),
            str(path),
            _reader(calibration, _input_name(source)),
            quant_format=ort.QuantFormat.QDQ,
            per_channel=True,
            activation_type=ort.QuantType.QUInt8,
            weight_type=ort.QuantType.QInt8,
            op_types_to_quantize=["MatMul", "Gemm", "Conv"],
            nodes_to_exclude=_without_weights(ready) + sensitive_products(ready, calibration),
            extra_options={"ActivationSymmetric": False},
        )
    _copy_metadata(source, path)


def _onnx_dynamic(source: Path, path: Path, calibration: Tensor | None) -> None:
    import onnx
    import onnxruntime.quantization as ort

    spoilt = [] if calibration is None else sensitive_products(source, calibration)
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.onnx"
        file = onnx.load(str(source))
        del file.graph.value_info[:]  # the tool turns weights over and trips over the shapes noted before
        onnx.save(file, str(bare))
        ort.quantize_dynamic(
            str(bare),
            str(path),
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            weight_type=ort.QuantType.QInt8,
            nodes_to_exclude=_without_weights(source) + spoilt,
        )
    _copy_metadata(source, path)


def _openvino_static(source: Path, path: Path, calibration: Tensor | None) -> None:
    import nncf
    import openvino

    assert calibration is not None
    images = list(calibration.split(1))
    quantised = nncf.quantize(
        openvino.Core().read_model(source),
        nncf.Dataset(images, lambda image: image.numpy()),
        model_type=nncf.ModelType.TRANSFORMER,
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(images),
    )
    openvino.save_model(quantised, path, compress_to_fp16=False)


def _without_weights(path: Path) -> list[str]:
    """Names of the products of two activations: attention's."""
    import onnx

    graph = onnx.load(str(path)).graph
    constants = {tensor.name for tensor in graph.initializer}
    for node in graph.node:  # a weight may pass through a transpose or the like
        if node.op_type in ("Constant", "Transpose", "Reshape", "Cast") and set(node.input) <= constants:
            constants |= set(node.output)
    products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm")]
    return [node.name for node in products if not set(node.input[:2]) & constants]


def _input_name(path: Path) -> str:
    import onnx

    return onnx.load(str(path), load_external_data=False).graph.input[0].name


def _copy_metadata(source: Path, path: Path) -> None:
    import onnx

    before, after = onnx.load(str(source)), onnx.load(str(path))
    known = {entry.key for entry in after.metadata_props}
    after.metadata_props.extend(entry for entry in before.metadata_props if entry.key not in known)
    onnx.save(after, str(path))


def _reader(images: Tensor, name: str) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        """Calibration images, batch by batch."""

        def __init__(self) -> None:
            self.batches: Iterator[Tensor] = iter(images.split(CALIBRATION_BATCH))

        def get_next(self) -> dict[str, Any] | None:  # type: ignore[override]
            batch = next(self.batches, None)
            return None if batch is None else {name: batch.numpy()}

    return Reader()


__all__ = ["quantise"]
