"""Whether weights from a file fit a model, said before anything is allocated for them.

    card → model on the meta device (shapes, no numbers) → compare with the file's tensors → only then the real model

A card is a claim by whoever wrote the file. While the claimed model is built, its modules and parameters are counted,
and the building stops where they exceed what the file's own tensors could ever fill.
"""

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
LARGEST_SIDE = 8192
"""Pixels of an image's side that a card may claim: nothing in the weights of a pooling model says a size."""
SPARE = 2**26
"""Elements of tensors that are computed and not stored, such as Swin's masks, that any model may have."""
FILLS = frozenset(("clamp_", "erfinv_", "uniform_", "normal_", "mul_", "add_", "fill_", "zero_"))
"""Operations that initialise weights; on the meta device they change nothing and take most of the time."""


def check_keys(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], source: str) -> None:
    """Refuse tensors that are missing, unexpected, of another shape or of another kind, in one line for all of them.

    >>> check_keys({"weight": torch.zeros(2)}, {"weight": torch.zeros(3)}, "x.pth")
    Traceback (most recent call last):
    ValueError: x.pth is for another model; of another shape: weight is (3,) instead of (2,) (1 in all)
    """
    both = [key for key in wanted if key in given]
    kinds = [
        f"{key} is {_name(given[key])} instead of {_name(wanted[key])}"
        for key in both
        if not _same_kind(wanted[key].dtype, given[key].dtype)
    ]
    shapes = [
        f"{key} is {tuple(given[key].shape)} instead of {tuple(wanted[key].shape)}"
        for key in both
        if given[key].shape != wanted[key].shape
    ]
    found = {
        "missing:": [key for key in wanted if key not in given],
        "unexpected:": [key for key in given if key not in wanted],
        "of another shape:": shapes,
        "of another kind:": kinds,
    }
    problems = [f"{label} {_some(items)}" for label, items in found.items() if items]
    if problems:
        raise ValueError(f"{source} is for another model; {'; '.join(problems)}")


def check_plain(tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse a file without tensors, or with one that is not plain: sparse, quantised, on the meta device and the like.

    >>> check_plain({"bias": torch.zeros(1).to_sparse()}, "x.pth")
    Traceback (most recent call last):
    ValueError: x.pth: bias is of the layout sparse_coo; plain dense tensors are needed
    """
    if not tensors:
        raise ValueError(f"{source} holds no state dict: what it has is empty")
    for key, value in tensors.items():
        if odd := _oddity(value):
            raise ValueError(f"{source}: {key[:80]} is {odd}; plain dense tensors are needed")


@contextlib.contextmanager
def building(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """A context on the meta device in which no model can be built that is far larger than these tensors could fill.

    Args:
        tensors: What the file holds. There is slack, as methods and folding replace modules that were built before.
    """
    parameters, modules = 1_000 + 16 * len(tensors), 20_000 + 200 * len(tensors)
    counts, here = {"parameters": 0, "modules": 0}, threading.get_ident()

    def count(kind: str, most: int) -> None:
        if threading.get_ident() != here:  # the hooks see every thread's modules
            return
        counts[kind] += 1
        if counts[kind] > most:
            raise ValueError(f"the model has more than {most} {kind}, but the file {len(tensors)} tensors")

    hooks = (
        torch_module.register_module_parameter_registration_hook(lambda *_: count("parameters", parameters)),
        torch_module.register_module_module_registration_hook(lambda *_: count("modules", modules)),
    )
    try:
        with torch.device("meta"), _Shapes():
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Shapes(TorchFunctionMode):
    """Leaves out the initialisation of tensors that have no numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], Tensor) and args[0].is_meta and getattr(func, "__name__", "") in FILLS:
            return args[0]
        return func(*args, **(kwargs or {}))


def check_size(model: nn.Module, size: tuple[int, ...], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a model, built on the meta device, that needs images or computed tensors out of all proportion."""
    if not all(isinstance(side, int) and 1 <= side <= LARGEST_SIDE for side in size):
        raise ValueError(f"it takes images of {size}; sides are 1 to {LARGEST_SIDE}")
    held = sum(value.numel() for value in tensors.values())
    needed = sum(math.prod(tensor.shape) for tensor in (*model.parameters(), *model.buffers()))
    if needed > SPARE + 8 * held:
        raise ValueError(f"it needs tensors of {needed} elements, but the file has {held}")


def _same_kind(wanted: torch.dtype, given: torch.dtype) -> bool:
    """Whether numbers may be converted without loss of meaning: floats to floats, whole numbers to whole numbers."""
    return wanted == given or any(wanted in kind and given in kind for kind in (FLOATS, INTEGERS))


def _oddity(value: Tensor) -> str:
    if value.is_quantized:
        return "quantised"
    if value.is_nested or value.layout != torch.strided:
        return f"of the layout {_layout(value)}"
    if value.is_meta:
        return "on the meta device, so it has a shape but no numbers"
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return "an expanded view, which holds fewer numbers than its shape says"
    return ""


def _layout(value: Tensor) -> str:
    return "nested" if value.is_nested else str(value.layout).removeprefix("torch.")


def _name(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _some(items: list[str], most: int = 4) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{', '.join(item[:160] for item in items[:most])}{more} ({len(items)} in all)"
