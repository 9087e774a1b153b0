"""leanformer export: a model into files that run without this package, each compared with it first."""

from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor, nn

from ..core import card_of, fuse, input_of
from ..data.samples import sample_images
from ..data.sources import Data, check_fit, check_labelled, open_data
from ..export import FORMATS, TARGETS, Run, open_file, quantise
from ..export.target import file_size
from .common import Apply, Model, Set, open_model
from .export_report import Row, add_accuracy, add_speed, report

Formats = Annotated[tuple[str, ...], tyro.conf.arg(name="format")]
COMPARED = 8
"""Real images in the comparison of every file."""


def export(
    model: Model,
    output: Path,
    formats: Formats = ("onnx",),
    methods: Apply = (),
    checkpoint: Path | None = None,
    arguments: Set = (),
    fused: bool = True,
    preprocess: tuple[int, int] | None = None,
    opset: int | None = None,
    int8: tuple[str, ...] = (),
    calibration: str | None = None,
    calibration_images: int = 256,
    data: str | None = None,
    split: str = "val",
    repeats: int = 5,
    result: Path | None = None,
) -> None:
    """Export a model; every file is compared with the model in its own runtime, and none is left when they differ.

    With --data the accuracy of the model and of every file on these images is printed beside their speed.

    Example: leanformer export lean.safetensors --format onnx openvino --output lean.onnx --data pack:imagenet_val.npz

    Args:
        model: A model's name or a leanformer checkpoint.
        output: The file to write; with several formats each gets its own ending.
        formats: onnx, openvino, torch, aoti, executorch; one or several.
        methods: A method as name:option=value,option=value; may be given several times.
        checkpoint: Weights for a model given by name.
        arguments: An argument of the model as name=value; may be given several times.
        fused: Fuse the model first.
        preprocess: Height and width of raw uint8 images that the file takes; it resizes, crops and normalises.
        opset: The ONNX operator set.
        int8: Also write int8 files: static (onnx, openvino), dynamic (onnx).
        calibration: Images for static int8: a folder or pack:PATH; other ones than those of --data.
        calibration_images: How many of them.
        data: Labelled images to compare and evaluate on: a folder of images or pack:PATH.
        split: Which part of the data.
        repeats: How often each file is timed, in turn with the others.
        result: Write the table as JSON, for example results/export.json.
    """
    _refuse(formats, int8, calibration, preprocess, data)
    opened = open_model(model, methods, checkpoint, arguments).eval()
    labelled = None if data is None else open_data(data, split)
    if labelled is not None:
        check_labelled(labelled)
        check_fit(opened, labelled)
    few = None if labelled is None else sample_images(opened, labelled, COMPARED)
    rows, runs = [Row("pytorch")], {"pytorch": _in_pytorch(opened, fused)}
    options: dict[str, Any] = {"fused": fused, "preprocess": preprocess, "images": few}
    for name in formats:
        more = {"opset": opset} if name == "onnx" and opset is not None else {}
        done = FORMATS[name](opened, _path(output, name, len(formats) > 1), **options, **more)
        rows.append(Row(name, str(done.path), done.size, done.parity.error, done.notes.get("bf16_error")))
        runs[name] = open_file(done.path)
        if int8:
            images = None if calibration is None else sample_images(opened, calibration, calibration_images)
            _add_int8(rows, runs, done.path, name, int8, images)
    if preprocess is None:
        _measure(rows, runs, opened, labelled, few, repeats)
    report(rows, " + ".join((model, *methods)), data, calibration, result)


def _refuse(formats: Any, int8: Any, calibration: Any, preprocess: Any, data: Any) -> None:
    """What cannot be asked for together, and packages that are missing, before any work is done."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise ValueError(f"unknown format '{' '.join(unknown)}'; known: {', '.join(FORMATS)}")
    if "static" in int8 and calibration is None:
        raise ValueError("static int8 needs --calibration, a set of images")
    if int8 and not any(mode in INT8.get(name, ()) for name in formats for mode in int8):
        raise ValueError(f"{' '.join(formats)} has no int8 {' '.join(int8)}; static: onnx, openvino; dynamic: onnx")
    if preprocess is not None and (data is not None or int8):
        raise ValueError("accuracy and int8 are for files without preprocessing: give --data and --int8 without it")
    for name in formats:
        TARGETS[name].require()


INT8 = {"onnx": ("static", "dynamic"), "openvino": ("static",)}
"""Format → the kinds of int8 that it has."""


def _add_int8(
    rows: list[Row], runs: dict[str, Run], source: Path, name: str, modes: tuple[str, ...], images: Tensor | None
) -> None:
    for mode in modes:
        if mode in INT8.get(name, ()):
            written = quantise(
                source, source.with_suffix(f".int8-{mode}{source.suffix}"), mode=mode, calibration=images
            )
            row = Row(f"{name} int8 {mode}", str(written), file_size(written))
            rows.append(row)
            runs[row.name] = open_file(written)


def _measure(
    rows: list[Row], runs: dict[str, Run], model: nn.Module, data: Data | None, few: Tensor | None, repeats: int
) -> None:
    if data is not None:
        add_accuracy(rows, runs, data, input_of(model))
    images = few if few is not None else torch.randn(COMPARED, *input_of(model)["input_size"])
    add_speed(rows, runs, images, repeats)


def _path(output: Path, name: str, several: bool) -> Path:
    """The file of a format: as it was given, or, where several are written, with the format's own ending."""
    if not several:
        return output
    endings = sorted((target.suffix for target in TARGETS.values()), key=len, reverse=True)
    stem = next((output.name.removesuffix(e) for e in endings if output.name.endswith(e)), output.name)
    return output.with_name(stem + TARGETS[name].suffix)


def _in_pytorch(model: nn.Module, fused: bool) -> Run:
    ready = fuse(model) if fused and not card_of(model).fused else model

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return ready(images)

    return run
