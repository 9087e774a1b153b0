"""leanformer serve: models behind HTTP, or one as a folder for Triton."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..serve.limits import Limits
from .checks import above_zero, at_least, check_address, input_files, open_device, output_folder
from .common import AS_NAMED, Built, Models

Emit = Annotated[
    tuple[tuple[Literal["triton"], Path], ...], tyro.conf.arg(metavar="triton FOLDER"), tyro.conf.UseAppendAction
]


def serve(
    models: Models,
    built: Built = AS_NAMED,
    emit: Emit = (),
    name: str | None = None,
    classes: Path | None = None,
    fused: bool = True,
    optimized: bool | None = None,
    reload: float = 2.0,
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
    """Serve models over HTTP: POST /classify, /embed, /detect or /segment, GET /models and /metrics, a page at /.

    Example: leanformer serve deit_small_patch16_224 --apply {tokens} --checkpoint deit_s.safetensors

    Example: leanformer serve lean=a.safetensors full=b.safetensors   (then POST /models/full/classify)

    Example: leanformer serve --emit triton models lean.safetensors

    Args:
        models: Names, leanformer checkpoints, or ONNX files that leanformer exported; NAME=FILE says what one is
            called. The first answers where a request names none.
        built: Methods, weights and arguments.
        emit: Do not serve; write a model repository for NVIDIA Triton into this folder.
        name: What a single model is called in answers and in the repository; by default the file's name.
        classes: A text file with the name of one class a line; by default the names on the model's card, or ImageNet's
            for 1000 classes.
        fused: Fuse the models first.
        optimized: Answer in the fastest form for batches of --max-batch images, searched for at the start. By default
            on a GPU; a file of an optimised model answers in its fast form anyway.
        reload: Seconds between two looks whether a file has changed; a changed one is opened beside the old one and
            takes its place without a request being dropped. 0: never.
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
    from . import serve_work as work

    at_least(1, max_batch=max_batch)
    above_zero(timeout=timeout, max_wait=max_wait, reload=reload or None)
    input_files(classes=classes)
    named = work.named(models, name)
    how = work.How(built, classes, fused, optimized, max_batch)
    if emit:
        if len(named) > 1:
            raise ValueError(f"--emit writes one model; {len(named)} were given")
        for _, folder in emit:
            output_folder(folder)
            work.emit(folder, *next(iter(named.items())), how, max_wait / 1000)
        return
    limits = Limits(
        body=max_body, pixels=max_pixels, request_pixels=max_request_pixels, images=max_images, seconds=timeout,
        queue=max_queue, connections=max_connections, headers=min(Limits.headers, timeout),
    )  # fmt: skip
    check_address(host, port)
    place = open_device(device)
    watched = work.watched(named, how, place) if reload else []  # first: a file may change while it is opened
    every = named.values()
    served = [work.open_served(called, model, how.among(model, every), place) for called, model in named.items()]
    work.listen(served, limits, max_batch, max_wait / 1000, host, port, watched, reload)
