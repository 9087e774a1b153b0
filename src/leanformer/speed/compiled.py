"""A module compiled by itself, and a recording of its kernels, each of which owns everything that it needs to run.

Compilers keep what they made in tables of their own, and unload the kernels when those are cleared or grow too long. A
CUDA graph does not hold the kernels that it replays: it would jump into code that is gone. So a `Compiled` keeps what
the compiler gave it, and a `Graph` keeps its `Compiled`, the inputs that it reads and the pool that it writes to.
"""

import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.attention import without_autocast
from ..measure.graphs import capture


class Compiled:
    """A module compiled for the shapes that it meets; it may be called at other shapes, and is compiled again then.

    It is compiled under a name of its own: the compiler gives up on a piece of code after eight versions of it, and
    all modules that are compiled as they are count as versions of the same piece.

    >>> layer = nn.Linear(2, 2)
    >>> Compiled(layer).module is layer
    True
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self._kept: list[Any] = []
        self._run: Callable[..., Any] = torch.compile(_own_code(module), dynamic=False, backend=self._by_inductor)

    @torch.inference_mode()
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with without_autocast(_first_tensor(arguments, named)):  # it computes in the dtype of its weights
            return self._run(*arguments, **named)

    def _by_inductor(self, graph: Any, inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        made = compile_fx(graph, inputs)
        self._kept += [graph, made]
        return made


class Graph:
    """A call of a `Compiled` recorded as a CUDA graph with a memory pool of its own.

    Args:
        compiled: what is called.
        arguments: what it is called with; these very tensors are read at every replay.
        named: the same, by name.
    """

    def __init__(self, compiled: Compiled, arguments: tuple[Any, ...], named: dict[str, Any] | None = None):
        self.device = _first_tensor(arguments, named or {}).device
        with torch.cuda.device(self.device):
            self.replay = capture(lambda: compiled(*arguments, **(named or {})))  # holds all that it reads

    def __call__(self) -> Any:
        """Replay; what is returned is overwritten by the next replay."""
        return self.replay()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the process there may be no device any more
            if not torch.cuda.is_current_stream_capturing():  # waiting would spoil what is being recorded
                torch.cuda.synchronize(self.device)  # a replay may still be running in the memory that is freed now


def _first_tensor(arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    return next(each for each in (*arguments, *named.values()) if isinstance(each, Tensor))


def _own_code(module: nn.Module) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        return module(*arguments, **named)

    return types.FunctionType(call.__code__.replace(), globals(), call.__name__, None, call.__closure__)
