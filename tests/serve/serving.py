"""What the tests of the service share: tiny models, pictures, and a real server on a loopback port."""

import contextlib
import io
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import uvicorn
from helpers import randomise
from PIL import Image

import leanformer as lf
from leanformer.serve import Limits, Served, of_model
from leanformer.serve.app import create_app
from leanformer.serve.server import server_options

TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5}
NAMES = ["ant", "bee", "cat", "dog", "elk"]


def tiny(*methods: Any) -> torch.nn.Module:
    torch.manual_seed(0)  # the same weights in every test
    return lf.apply(randomise(lf.create("vit", **TINY)), *methods).eval()


def tiny_served(*methods: Any) -> Served:
    return of_model(tiny(*methods), "tiny", NAMES)


def picture(width: int = 60, height: int = 40, kind: str = "PNG", seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return written(Image.fromarray(pixels), kind)


def written(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


@contextlib.contextmanager
def serving(served: Served | list[Served], limits: Limits | None = None, **options: Any) -> Iterator[str]:
    """A server in a thread; its address."""
    port = free_port()
    app = create_app(served, limits, **options)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, **server_options(limits or Limits())))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
