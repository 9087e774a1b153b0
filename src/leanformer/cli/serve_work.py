"""What `leanformer serve` does: open a model or a file, listen, or write a repository for Triton."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from ..core import card_of, classes_of, fuse
from ..export import onnx, open_file
from ..export.target import require
from ..measure.terminal import console
from ..serve import Limits, OnnxFile, Served, of_file, of_model, write_repository
from ..visualise.names import class_names_of
from .common import open_model

SERVING = ("fastapi", "uvicorn", "python_multipart")


def listen(served: Served, limits: Limits, max_batch: int, max_wait: float, host: str, port: int) -> None:
    """Answer requests until the process is told to end."""
    from ..serve import server
    from ..serve.app import create_app

    served.warm_up(max_batch)
    app = create_app(served, limits, max_batch=max_batch, max_wait=max_wait)
    console().print(f"{served.name} on {served.runtime}: http://{host}:{port}")
    server.listen(app, limits, host, port)


def emit(
    folder: Path,
    name: str,
    model: str,
    how: tuple[tuple[str, ...], Path | None, tuple[str, ...]],
    classes: Path | None,
    fused: bool,
    max_batch: int,
    max_wait: float,
) -> None:
    require(("onnx", "onnxscript", "onnxruntime"), "onnx", "a repository for Triton")
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(model)
        if path.suffix == ".onnx":
            only_file(model, *how)
        else:
            path = onnx(open_model(model, *how), Path(temporary) / "model.onnx", fused=fused).path
        file = OnnxFile.read(path)
        names = _classes(classes, file.output_dims[-1], file.classes)
        written = write_repository(folder, name, file, names, max_batch=max_batch, max_wait=max_wait)
    console().print(f"wrote {written}; serve it with: tritonserver --model-repository={folder}")


def only_file(model: str, methods: tuple[str, ...], checkpoint: Path | None, arguments: tuple[str, ...]) -> None:
    if methods or checkpoint is not None or arguments:
        raise ValueError(f"{model} is finished: give no methods, no checkpoint and no arguments with it")


def serve_file(model: str, name: str, classes: Path | None) -> Served:
    """An ONNX file that leanformer exported, ready to answer."""
    require(SERVING, "serve", "serving")
    file = OnnxFile.read(model)
    return of_file(file, open_file(model), name, _classes(classes, file.output_dims[-1], file.classes))


def serve_model(model: nn.Module, place: torch.device, name: str, classes: Path | None, fused: bool) -> Served:
    """A model on a device, ready to answer."""
    require(SERVING, "serve", "serving")
    ready = _ready(model, fused).to(place)
    return of_model(ready, name, _classes(classes, ready.num_classes, classes_of(ready)))  # type: ignore[arg-type]


def _ready(model: nn.Module, fused: bool) -> nn.Module:
    return fuse(model) if fused and not card_of(model).fused else model.eval()


def _classes(path: Path | None, total: int, carded: Sequence[str] | None) -> Sequence[str]:
    """The names in a text file, else those on the model's card, else ImageNet's or numbers."""
    if path is None:
        return class_names_of(total, carded if carded is not None and len(carded) == total else None)
    try:
        names = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the class names in {path}: {error}") from error
    if len(names) != total:
        raise ValueError(f"{path} names {len(names)} classes, but the model has {total}")
    return names
