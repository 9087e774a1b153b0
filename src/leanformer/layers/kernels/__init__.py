"""Pieces of kernels that two owners share, and how a kernel becomes an operator of torch."""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def operator(kernel: str, shapes: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorate the plain form of a function: an operator that computes so on a CPU, and by a kernel on a GPU.

    Where a GPU has too little memory for the kernel's programs it computes in the plain form too. The operator has the
    function's name, and the function itself as `plain`.

    Args:
        kernel: The module whose `launch` runs the kernel with the same arguments; it is imported at the first call, so
            that everything else works where Triton is not installed.
        shapes: The same arguments → empty tensors of the shapes and dtypes that come out.
    """

    def decorate(plain: Callable[..., Any]) -> Any:
        made = torch.library.custom_op(f"leanformer::{plain.__name__}", mutates_args=(), device_types="cpu")(plain)
        made.register_kernel("cuda")(_by_kernel(kernel, plain))
        made.register_fake(shapes)
        made.plain = plain  # type: ignore[attr-defined]
        return made

    return decorate


def _by_kernel(kernel: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        launch = importlib.import_module(kernel).launch
        from triton import OutOfResources  # there is one, or the line before had failed

        try:
            with on_device_of(given[0]):
                return launch(*given)
        except OutOfResources:
            return plain(*given)

    return run


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Within this, kernels run on the GPU that holds a tensor: Triton launches on the current one, maybe another.

    >>> with on_device_of(torch.zeros(1)):
    ...     pass
    """
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
