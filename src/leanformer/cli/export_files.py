"""What `leanformer export` writes and measures: a file a format, int8 files beside them, each compared first."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core import card_of, fuse, input_of
from ..data.dense import Target
from ..data.dense_augment import SceneEvaluation
from ..data.dense_open import open_scenes
from ..data.kinds import UNREADABLE
from ..data.samples import sample_images
from ..data.sources import Data, check_fit, check_labelled, open_data
from ..export import FORMATS, TARGETS, Run, open_file, quantise
from ..export.target import file_size
from ..tasks.fitting import task_of
from .export_report import Row, add_accuracy, add_speed

COMPARED = 8
"""Real images in the comparison of every file."""
INT8 = {"onnx": ("static", "dynamic"), "openvino": ("static",)}
"""Format → the kinds of int8 that it has."""


class Files:
    """The files of one model: a row for each, and each opened in its own runtime; PyTorch itself is the first."""

    def __init__(
        self, model: nn.Module, labelled: Data | None, options: dict[str, Any], pictures: list[Tensor] | None = None
    ):
        self.model, self.labelled, self.options = model, labelled, options
        self.few = pictures if labelled is None else sample_images(model, labelled, COMPARED)
        self.rows = [Row("pytorch")]
        self.runs: dict[str, Run] = {"pytorch": in_pytorch(model, options["fused"])}

    def add(self, name: str, path: Path) -> None:
        """Write the model in a format, compare it, and open it."""
        options = self.options | {"images": self.few}
        if name != "onnx":
            del options["opset"]
        done = FORMATS[name](self.model, path, **{key: value for key, value in options.items() if value is not None})
        row = Row(name, str(done.path), done.size, done.parity.error, done.notes.get("bf16_error"))
        row.boxes = done.notes.get("boxes")
        self.rows.append(row)
        if row.boxes is None:  # what a detector answers is no image of one size in, logits out
            self.runs[name] = open_file(done.path)

    def add_int8(self, source: Path, name: str, modes: tuple[str, ...], images: Tensor | None) -> None:
        """Write the int8 forms of a file that its format has."""
        for mode in modes:
            if mode in INT8.get(name, ()):
                target = source.with_suffix(f".int8-{mode}{source.suffix}")
                written = quantise(source, target, mode=mode, calibration=images)
                row = Row(f"{name} int8 {mode}", str(written), file_size(written))
                self.rows.append(row)
                self.runs[row.name] = open_file(written)

    def measure(self, repeats: int) -> None:
        """Accuracy, where there are labelled images, and speed of every row."""
        if self.labelled is not None:
            add_accuracy(self.rows, self.runs, self.labelled, input_of(self.model))
        images = self.few if isinstance(self.few, Tensor) else None
        images = torch.randn(COMPARED, *input_of(self.model)["input_size"]) if images is None else images
        add_speed(self.rows, self.runs, images, repeats)


def refuse(formats: Any, int8: Any, calibration: Any, preprocess: Any, data: Any) -> None:
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


def is_dense(model: nn.Module, preprocess: Any, int8: Any, data: Any) -> bool:
    """Whether a model is a detector or a segmenter; what their files do not have is refused."""
    task = task_of(model).name
    if task != "classification" and (preprocess is not None or int8):
        raise ValueError(f"--preprocess and --int8 are for classifiers, but this is a model for {task}")
    if task == "segmentation" and data is not None:
        raise ValueError(f"--data is for classifiers and detectors, but this is a model for {task}")
    return task != "classification"


def open_pictures(model: nn.Module, data: str | None, split: str, size: tuple[int, int] | None) -> list[Tensor] | None:
    """Some pictures (C, H, W), 0 to 1, to compare a detector's file on; None where there are none."""
    if data is None or task_of(model).name != "detection":
        return None
    scenes, view, found = open_scenes(data, split, "boxes"), SceneEvaluation(size), []
    for index in sorted({place * len(scenes) // COMPARED for place in range(COMPARED)}):
        try:
            found.append(view(scenes.picture(index)[0], Target())[0])
        except UNREADABLE:
            continue
    if not found:
        raise ValueError(f"none of the pictures of {scenes.name} that were tried can be read")
    return found


def open_labelled(model: nn.Module, data: str | None, split: str) -> Data | None:
    """The images to compare and evaluate a classifier on, which must fit it; None where there are none."""
    if data is None or task_of(model).name != "classification":
        return None
    labelled = open_data(data, split)
    check_labelled(labelled)
    check_fit(model, labelled)
    return labelled


def path_of(output: Path, name: str, several: bool) -> Path:
    """The file of a format: as it was given, or, where several are written, with the format's own ending."""
    if not several:
        TARGETS[name].check_name(output)
        return output
    endings = sorted((target.suffix for target in TARGETS.values()), key=len, reverse=True)
    stem = next((output.name.removesuffix(e) for e in endings if output.name.endswith(e)), output.name)
    return output.with_name(stem + TARGETS[name].suffix)


def in_pytorch(model: nn.Module, fused: bool) -> Run:
    """The model itself as a function, fused where the files are."""
    ready = fuse(model) if fused and not card_of(model).fused else model

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return ready(images)

    return run
