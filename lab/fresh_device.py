"""One job of many in a process: what it compiles finds an empty compiler, and what it leaves on the device is freed."""

import contextlib
import gc
from collections.abc import Iterator

import torch

from leanformer.measure import shared_kernels


@contextlib.contextmanager
def fresh_device(device: torch.device) -> Iterator[None]:
    """Models compiled within this share kernels, find an empty compiler, and leave no memory behind.

    Args:
        device: where they run.

    >>> with fresh_device(torch.device("cpu")):
    ...     pass
    """
    torch.compiler.reset()  # a compiler gives up after eight shapes of one module
    try:
        with shared_kernels():
            yield
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
