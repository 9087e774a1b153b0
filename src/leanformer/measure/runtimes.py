"""Runtimes beside PyTorch: models exported to files, in the same table as the models themselves.

A runtime is a name, such as `onnxruntime`, and a function that turns a model into something that computes its answers
there. Each model is exported once, whatever the number of batch sizes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .timing import Call, prepare

Open = Callable[[nn.Module], Callable[[Tensor], Any]]
"""A model → a function that computes its answers in a runtime."""


class Runtimes:
    """Modes of a comparison that are no modes of PyTorch: `prepare` gives the call that is timed, for any mode.

    >>> runtimes = Runtimes({"twice": lambda model: lambda images: model(model(images))})
    >>> runtimes.prepare(nn.Identity(), nn.Identity(), torch.zeros(1), "twice")()
    tensor([0.])
    """

    def __init__(self, known: Mapping[str, Open] | None = None):
        self.known = dict(known or {})
        self.opened: dict[tuple[int, str], Callable[[Tensor], Any]] = {}

    def prepare(self, model: nn.Module, twin: nn.Module, images: Tensor, mode: str) -> Call:
        """A call on `images`: of `twin` (the model in the wanted dtype) in PyTorch, or of the exported model."""
        if mode not in self.known:
            return prepare(twin, images, mode)
        if images.dtype != torch.float32 or images.device.type != "cpu":
            raise ValueError(f"runtime '{mode}' is measured in float32 on the CPU, not in {images.dtype}")
        key = (id(model), mode)
        if key not in self.opened:
            self.opened[key] = self.known[mode](model)
        run = self.opened[key]
        return lambda: run(images)
