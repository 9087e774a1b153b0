"""leanformer export: a model into files that run without this package, each compared with it first."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from .checks import at_least, one_of, output_files
from .common import AS_NAMED, Built, Model

Formats = Annotated[tuple[str, ...], tyro.conf.arg(name="format")]


def export(
    model: Model,
    output: Path,
    formats: Formats = ("onnx",),
    built: Built = AS_NAMED,
    fused: bool = True,
    preprocess: tuple[int, int] | None = None,
    size: tuple[int, int] | None = None,
    any_size: bool = False,
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
        built: Methods, weights and arguments.
        fused: Fuse the model first.
        preprocess: Height and width of raw uint8 images that the file takes; it resizes, crops and normalises.
        size: Height and width of the images of a detector's or segmenter's file. By default a detector's takes any, a
            segmenter's those on its card.
        any_size: A segmenter's ONNX file takes images of any size.
        opset: The ONNX operator set.
        int8: Also write int8 files: static (onnx, openvino), dynamic (onnx).
        calibration: Images for static int8: a folder or pack:PATH; other ones than those of --data.
        calibration_images: How many of them.
        data: Labelled images to compare and evaluate on: a folder of images or pack:PATH. Of a detector a folder as for
            training, to compare the boxes on.
        split: Which part of the data.
        repeats: How often each file is timed, in turn with the others.
        result: Write the table as JSON, for example results/export.json.
    """
    from ..data.samples import sample_images
    from . import export_files as files
    from .export_report import report

    at_least(1, preprocess=preprocess, size=size, calibration_images=calibration_images, repeats=repeats, opset=opset)
    one_of(("static", "dynamic"), int8=int8)
    if any_size and size is not None:
        raise ValueError("--size and --any-size contradict each other; give one of them")
    files.refuse(formats, int8, calibration, preprocess, data)
    paths = {name: files.path_of(output, name, len(formats) > 1) for name in formats}
    output_files(*paths.values(), folders=False)
    output_files(result)
    opened = built.open(model).eval()
    dense = files.is_dense(opened, preprocess, int8, data)
    labelled, pictures = files.open_labelled(opened, data, split), files.open_pictures(opened, data, split, size)
    options: dict[str, Any] = {"fused": fused, "preprocess": preprocess, "opset": opset}
    options["size"] = "any" if any_size else size
    written = files.Files(opened, labelled, options, pictures)
    for name, path in paths.items():
        written.add(name, path)
        if int8:
            images = None if calibration is None else sample_images(opened, calibration, calibration_images)
            written.add_int8(path, name, int8, images)
    if preprocess is None and not dense:
        written.measure(repeats)
    report(written.rows, " + ".join((model, *built.methods)), data, calibration, result)
