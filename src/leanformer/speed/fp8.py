"""Linear layers as fp8 products: faster where matrices are large, and not the same answers.

The maths stand in `kernels.fp8`. Layers that see one row an image (classifiers) stay as they are: they have nothing to
gain, and their errors reach the answers undamped.
"""

import copy
import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ..core import input_of
from .kernels.fp8 import ALIGNED, NEEDED, fp8_linear, fp8_linear_reference, has_fp8, quantise_rows

STEP = "fp8 products"
TOLERANCE = 0.25
"""Largest error of the outputs, as a share of their norm: more than this is a defect and not rounding."""


class Fp8Linear(nn.Module):
    """A linear layer whose weight and inputs are rounded to fp8, each row with its own scale.

    >>> layer = nn.Linear(32, 16)
    >>> x = torch.randn(4, 32)
    >>> bool((Fp8Linear(layer)(x) - layer(x)).norm() < 0.1 * layer(x).norm())
    True
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight, scale = quantise_rows(linear.weight.detach())
        self.register_buffer("weight", weight)  # (D, C)
        self.register_buffer("scale", scale)  # (D, 1)
        self.bias = linear.bias
        self.product = _product(weight.device)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.scale, self.bias)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moved to another device, the layer multiplies as that one can."""
        moved = super()._apply(fn, recurse)
        self.product = _product(self.weight.device)
        return moved

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, bias={self.bias is not None}"


def fp8_products(model: nn.Module) -> nn.Module | None:
    """The model with every linear layer that fits as an fp8 product, or None where none fits.

    >>> import leanformer as lf
    >>> type(fp8_products(lf.create("deit_tiny_patch16_224")).blocks[0].mix.fn.qkv).__name__
    'Fp8Linear'
    """
    new = copy.deepcopy(model).eval()
    paths = [path for path, rows in _rows_seen(new).items() if rows > 1 and _fits(new.get_submodule(path))]
    if not paths:
        return None
    for path in paths:
        new.set_submodule(path, Fp8Linear(new.get_submodule(path)).eval())  # type: ignore[arg-type]
    return new


def require_fp8(device: torch.device, dtype: str) -> None:
    """Refuse where fp8 products cannot be fast.

    >>> require_fp8(torch.device("cpu"), "bfloat16")
    Traceback (most recent call last):
        ...
    ValueError: fp8 products need an NVIDIA GPU of compute capability 8.9 or higher (Ada, Hopper, Blackwell); found cpu
    """
    if not has_fp8(device):
        found = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        needed = f"an NVIDIA GPU of compute capability {NEEDED[0]}.{NEEDED[1]} or higher (Ada, Hopper, Blackwell)"
        raise ValueError(f"fp8 products need {needed}; found {found}")
    if dtype != "bfloat16":
        raise ValueError(f"fp8 products give bfloat16; ask for dtype='bfloat16', not '{dtype}'")


def _product(device: torch.device) -> Callable[..., Tensor]:
    return fp8_linear if has_fp8(device) else fp8_linear_reference


def _fits(layer: Any) -> bool:
    return layer.in_features % ALIGNED == 0 and layer.out_features % ALIGNED == 0


def _rows_seen(model: nn.Module) -> dict[str, int]:
    """Path of each linear layer that is called as a module → rows that one image brings to it.

    Layers whose weights are taken by other code are never called, and do not appear.
    """
    seen: dict[str, int] = {}

    def note(path: str, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen[path] = arguments[0][..., 0].numel()

    some = next(model.parameters())
    with torch.inference_mode(), ExitStack() as hooks:
        for path, module in model.named_modules():
            if type(module) is nn.Linear:
                hooks.enter_context(module.register_forward_pre_hook(functools.partial(note, path)))
        model(torch.zeros(1, *input_of(model)["input_size"], dtype=some.dtype, device=some.device))
    return seen
