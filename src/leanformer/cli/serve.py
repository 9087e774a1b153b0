"""leanformer serve: a model behind HTTP, or as a folder for Triton. leanformer serve-load: how it stands a load."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from torch import nn

from ..core import card_of, classes_of, fuse
from ..export import onnx, open_file
from ..export.target import require
from ..measure.console import console
from ..measure.results import record, write_result
from ..serve import Limits, OnnxFile, Served, of_file, of_model, write_repository
from ..serve.load import health, put_load
from ..visualise.names import class_names_of
from .common import Apply, Model, Set, open_model

Emit = Annotated[
    tuple[tuple[Literal["triton"], Path], ...], tyro.conf.arg(metavar="triton FOLDER"), tyro.conf.UseAppendAction
]


def serve(
    model: Model,
    methods: Apply = (),
    checkpoint: Path | None = None,
    arguments: Set = (),
    emit: Emit = (),
    name: str | None = None,
    classes: Path | None = None,
    fused: bool = True,
    device: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_batch: int = 16,
    max_wait: float = 5.0,
    max_body: int = Limits.body,
    max_pixels: int = Limits.pixels,
    max_request_pixels: int = Limits.request_pixels,
    max_images: int = Limits.images,
    max_queue: int = Limits.queue,
    max_connections: int = Limits.connections,
    timeout: float = Limits.seconds,
) -> None:
    """Serve a model over HTTP: POST /classify, GET /healthz and /metrics, and a page for people at /.

    Example: leanformer serve deit_small_patch16_224 --apply evit:keep_rate=0.7 --checkpoint deit_s.safetensors

    Example: leanformer serve --emit triton models lean.safetensors

    Args:
        model: A name, a leanformer checkpoint, or an ONNX file that leanformer exported.
        methods: A method as name:option=value,option=value; may be given several times.
        checkpoint: Weights for a model given by name.
        arguments: An argument of the model as name=value; may be given several times.
        emit: Do not serve; write a model repository for NVIDIA Triton into this folder.
        name: What the model is called in answers and in the repository.
        classes: A text file with the name of one class a line; by default the names on the model's card, or ImageNet's
            for 1000 classes.
        fused: Fuse the model first.
        device: Where PyTorch computes: cpu or cuda; by default the GPU if there is one.
        host: The address to listen on; 0.0.0.0 for every one.
        port: The port to listen on.
        max_batch: Images that go through the model together.
        max_wait: Milliseconds that an image waits for others.
        max_body: Bytes of one request.
        max_pixels: Pixels of one image.
        max_request_pixels: Pixels of all images of one request together.
        max_images: Images in one request.
        max_queue: Images that may wait; more are answered with 503.
        max_connections: Connections that may be open; beyond it one that asks for nothing is closed.
        timeout: Seconds until a request is answered with 504.
    """
    called = name or Path(model).stem
    if emit:
        for _, folder in emit:
            _emit(folder, called, model, (methods, checkpoint, arguments), classes, fused, max_batch, max_wait / 1000)
        return
    require(("fastapi", "uvicorn", "python_multipart"), "serve", "serving")
    limits = Limits(
        body=max_body, pixels=max_pixels, request_pixels=max_request_pixels, images=max_images, seconds=timeout,
        queue=max_queue, connections=max_connections, headers=min(Limits.headers, timeout),
    )  # fmt: skip
    if Path(model).suffix == ".onnx":
        _only_file(model, methods, checkpoint, arguments)
        file = OnnxFile.read(model)
        served = of_file(file, open_file(model), called, _classes(classes, file.output_dims[-1], file.classes))
    else:
        opened = _ready(open_model(model, methods, checkpoint, arguments), fused).to(_place(device))
        names = _classes(classes, opened.num_classes, classes_of(opened))  # type: ignore[arg-type]
        served = of_model(opened, called, names)
    _listen(served, limits, max_batch, max_wait / 1000, host, port)


def serve_load(
    url: Annotated[str, tyro.conf.Positional],
    clients: int = 64,
    seconds: float = 60.0,
    output: Path | None = None,
) -> int:
    """Load on a running service: clients that each send one image after the other; latency percentiles.

    Example: leanformer serve-load http://127.0.0.1:8000 --clients 64 --seconds 60 --output results/serve_load.json

    Args:
        url: The address of the service.
        clients: How many send at the same time.
        seconds: For how long.
        output: Write the figures as JSON.
    """
    about = health(url)
    row = put_load(url, clients=clients, seconds=seconds).row()
    told = {key: about.get(key) for key in ("model", "runtime", "input_size", "classes")}
    for key, value in row.items():
        console().print(f"{key:12} {value}")
    if output is not None:
        console().print(f"wrote {write_result(record('serve load', [told | row]), output)}")
    return 1 if row["failed"] else 0


def _listen(served: Served, limits: Limits, max_batch: int, max_wait: float, host: str, port: int) -> None:
    from ..serve.app import create_app
    from ..serve.server import listen

    served.warm_up(max_batch)
    app = create_app(served, limits, max_batch=max_batch, max_wait=max_wait)
    console().print(f"{served.name} on {served.runtime}: http://{host}:{port}")
    listen(app, limits, host, port)


def _emit(
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
            _only_file(model, *how)
        else:
            path = onnx(open_model(model, *how), Path(temporary) / "model.onnx", fused=fused).path
        file = OnnxFile.read(path)
        names = _classes(classes, file.output_dims[-1], file.classes)
        written = write_repository(folder, name, file, names, max_batch=max_batch, max_wait=max_wait)
    console().print(f"wrote {written}; serve it with: tritonserver --model-repository={folder}")


def _only_file(model: str, methods: tuple[str, ...], checkpoint: Path | None, arguments: tuple[str, ...]) -> None:
    if methods or checkpoint is not None or arguments:
        raise ValueError(f"{model} is finished: give no methods, no checkpoint and no arguments with it")


def _ready(model: nn.Module, fused: bool) -> nn.Module:
    return fuse(model) if fused and not card_of(model).fused else model.eval()


def _place(device: str | None) -> torch.device:
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no GPU that PyTorch can use here; leave --device out or give cpu")
    return place


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
