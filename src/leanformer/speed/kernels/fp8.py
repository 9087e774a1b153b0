"""Matrix products of 8-bit floats (e4m3) with one scale for every row, of the inputs and of the weights.

    x ≈ diag(a) X,  W ≈ diag(b) V   with X, V in fp8, a_i = max |x_i| / 448, b_j = max |w_j| / 448
    y = diag(a) (X Vᵀ) diag(b) + bias                                          summed in float32, given in bf16

Weights are quantised once, inputs as they come. The reference multiplies the same numbers in float32, for devices
without fp8 units: as exact, not as fast.

M rows, C channels in, D channels out, both multiples of 16.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

FP8 = torch.float8_e4m3fn
HIGHEST = torch.finfo(FP8).max
ALIGNED = 16
"""Both sides of a weight must be multiples of this."""
NEEDED = (8, 9)
"""The first compute capability with fp8 units: Ada; then Hopper and Blackwell."""


def has_fp8(device: torch.device) -> bool:
    """Whether a device multiplies fp8 matrices itself.

    >>> has_fp8(torch.device("cpu"))
    False
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= NEEDED


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (…, C) in fp8, and the scale of each row (…, 1) in float32; their product is x, rounded.

    >>> quantise_rows(torch.tensor([[1.0, -2.0]]))[1] * 448
    tensor([[2.]])
    """
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=1e-12) / HIGHEST  # (…, 1)
    return (wide / scale).clamp(-HIGHEST, HIGHEST).to(FP8), scale


def fp8_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + bias for x (…, C) and a weight (D, C) quantised to fp8 with scales (D, 1): (…, D) in the dtype of x.

    >>> w, s = quantise_rows(torch.eye(16, device="cuda"))  # doctest: +SKIP
    >>> fp8_linear(torch.ones(2, 16, device="cuda"), w, s, None).shape  # doctest: +SKIP
    torch.Size([2, 16])
    """
    rows, row_scale = quantise_rows(x.reshape(-1, x.shape[-1]))  # (M, C), (M, 1)
    y = torch._scaled_mm(
        rows, weight.t(), row_scale, scale.t(), bias=None if bias is None else bias.to(torch.bfloat16),
        out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip
    return y.view(*x.shape[:-1], -1).to(x.dtype)


def fp8_linear_reference(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """The same numbers, multiplied in float32 and rounded to bf16 as the fp8 units do.

    >>> w, s = quantise_rows(torch.eye(16))
    >>> fp8_linear_reference(torch.ones(2, 16), w, s, None)[0, 0]
    tensor(1.)
    """
    rows, row_scale = quantise_rows(x)
    y = F.linear(rows.float() * row_scale, weight.float() * scale, None if bias is None else bias.float())
    return y.to(torch.bfloat16).to(x.dtype)
