"""How models of which only a part can be compiled, such as detectors, are timed: whole, with that part made fast.

Where boxes lie is computed in float32 whatever the layers compute in, so half precision is autocast's.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core import OptimisesInside
from .timing import Call

MODES = ("eager", "compiled", "optimised")


def prepare_inside(
    model: nn.Module, images: Tensor, mode: str, dtype: str, optimize: Callable[..., Any] | None
) -> Call:
    """A call that runs such a model on images.

    Args:
        model: The model in float32, on the device of the images.
        images: A batch in float32, (B, C, H, W).
        mode: eager, compiled or optimised: the latter two of the part that can be.
        dtype: float32, bfloat16 or float16: what the layers compute in.
        optimize: `lf.optimize`, for the mode optimised.

    Raises:
        ValueError: The mode is another one, such as a CUDA graph, which holds no choice among what is found.

    >>> import leanformer as lf
    >>> model = lf.tasks.detector("retinanet", "poolformer_s12", 2, min_size=64, max_size=64).eval()
    >>> len(prepare_inside(model, torch.zeros(1, 3, 64, 64), "eager", "float32", None)())
    1
    """
    assert isinstance(model, OptimisesInside)
    if mode not in MODES or (mode == "optimised" and optimize is None):
        raise ValueError(
            f"{type(model).__name__} has no mode '{mode}', since what it computes depends on what it sees; take "
            f"{', '.join(MODES)}"
        )
    device, run = images.device, model
    if mode == "compiled":
        run = model.compiled_inside(partial(torch.compile, fullgraph=True, dynamic=False))
    elif optimize is not None and mode == "optimised":
        run = optimize(model, device=device, batch=len(images), dtype=dtype, search=False)
    low = dtype != "float32"

    def call() -> Any:
        context = torch.autocast(device.type, getattr(torch, dtype)) if low else contextlib.nullcontext()
        with torch.inference_mode(), context:
            return run(images)

    return call
