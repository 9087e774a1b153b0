"""Parameters and multiply-accumulates of a model, by module.

MACs are counted from the shapes that really occur in a forward pass: convolutions, linears and matrix products, each
attention product once, norms and activations not at all. Pooling multiplies nothing; its additions stand apart.
The pass runs on the meta device, so a ViT-H costs no memory and no arithmetic.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from timm.layers import to_2tuple
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ..core import HasFixedPass, input_of, plain_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Count:
    """Parameters, MACs and pooling additions, of a whole model or of one of its modules."""

    parameters: int
    macs: int
    pooling: int = 0


def count(model: nn.Module, size: tuple[int, ...] | None = None) -> Count:
    """The whole model's count for one image.

    Args:
        model: any model; it is left as it was.
        size: of the image, (C, H, W); by default the model's own.

    >>> import leanformer as lf
    >>> round(count(lf.create("deit_small_patch16_224")).macs / 1e9, 3)
    4.599
    """
    return count_modules(model, size)[""]


def count_modules(model: nn.Module, size: tuple[int, ...] | None = None) -> dict[str, Count]:
    """The count of every module by path; the whole model is at the empty path.

    Args:
        model: any model; it is left as it was.
        size: of the image, (C, H, W); by default the model's own.

    >>> import leanformer as lf
    >>> count_modules(lf.create("deit_tiny_patch16_224"))["blocks.0.ffn"].macs
    58097664
    """
    model = plain_of(model)
    twin = copy.deepcopy(model).to("meta").eval().requires_grad_(False)
    kind = next((weight.dtype for weight in twin.parameters()), torch.float32)  # a part may have no weights
    images = torch.empty(1, *(size or input_of(model)["input_size"]), device="meta", dtype=kind)
    if isinstance(twin, HasFixedPass):
        twin.forward = twin.fixed_pass  # called as the whole model, so that modules are counted under their paths
    # with autograd on, some composite operators run as one kernel that the counter does not know
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=_BLIND) as counter, _pooling(twin) as pool:
        try:
            twin(images)
        except (AssertionError, RuntimeError) as error:
            wrong = f"this {type(model).__name__} takes no images of size {tuple(images.shape[1:])}: {error}"
            raise ValueError(wrong) from error
    flops = {path.partition(".")[2]: sum(ops.values()) for path, ops in counter.get_flop_counts().items()}
    flops[""] = counter.get_total_flops()
    return {
        path: Count(sum(p.numel() for p in module.parameters()), flops.get(path, 0) // 2, _under(path, pool))
        for path, module in model.named_modules()
    }


def _sdpa(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return sdpa_flop_count(query, key, value)


_BLIND = {
    aten._scaled_dot_product_flash_attention_for_cpu: _sdpa,
    aten._scaled_dot_product_fused_attention_overrideable: _sdpa,
}


@contextmanager
def _pooling(model: nn.Module) -> Iterator[Counter[str]]:
    """Within the context, additions of average pooling by path: one for each element of each window."""
    counts: Counter[str] = Counter()

    def add(path: str, module: Any, inputs: Any, output: torch.Tensor) -> None:
        counts[path] += output.numel() * prod(to_2tuple(module.kernel_size))  # type: ignore[operator, arg-type]

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            if isinstance(module, nn.AvgPool2d):
                hooks.enter_context(module.register_forward_hook(partial(add, path)))
        yield counts


def _under(path: str, counts: Counter[str]) -> int:
    return sum(n for at, n in counts.items() if not path or at == path or at.startswith(f"{path}."))
