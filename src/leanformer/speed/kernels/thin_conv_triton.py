# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""The kernel behind `thin_conv`: a program gathers the patches of its pixels chunk by chunk and multiplies them.

B batch, C channels, D output channels; x by its strides, y with the channels last.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .thin_conv import places

ROWS, CHUNK = 128, 32


def launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, kernel: int, stride: int, padding: int, gelu: bool
) -> Tensor:
    """x (B, C, H, W), weight (D, K) → (B, H', W', D)."""
    batch, channels, height, width = x.shape
    high, wide = (places(side, kernel, stride, padding) for side in (height, width))
    outputs, columns = weight.shape
    y = torch.empty(batch, high, wide, outputs, dtype=x.dtype, device=x.device)
    bias = torch.zeros(outputs, dtype=x.dtype, device=x.device) if bias is None else bias
    total = batch * high * wide
    _thin_conv_kernel[(triton.cdiv(total, ROWS),)](
        x, weight.contiguous(), bias, y, *x.stride(), height, width, high, wide, total,
        C=channels, KERNEL=kernel, STRIDE=stride, PADDING=padding, COLUMNS=columns, D=outputs,
        WIDE=max(16, triton.next_power_of_2(outputs)), GELU=gelu, ROWS=ROWS, CHUNK=CHUNK, num_warps=4,
    )  # fmt: skip
    return y


@triton.jit
def _thin_conv_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, x_b, x_c, x_h, x_w, height, width, high, wide, total,
    C: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, COLUMNS: tl.constexpr,
    D: tl.constexpr, WIDE: tl.constexpr, GELU: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    image = (rows // (high * wide)).to(tl.int64)
    top = rows % (high * wide) // wide * STRIDE - PADDING
    left = rows % wide * STRIDE - PADDING
    out = tl.arange(0, WIDE)
    acc = tl.zeros((ROWS, WIDE), tl.float32)
    for start in tl.static_range(0, COLUMNS, CHUNK):
        k = start + tl.arange(0, CHUNK)  # (ky, kx, c)
        c, h, w = k % C, k // (C * KERNEL), k // C % KERNEL
        y, x = top[:, None] + h[None, :], left[:, None] + w[None, :]
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        inside = inside & (k[None, :] < C * KERNEL * KERNEL) & (rows[:, None] < total)
        where = image[:, None] * x_b + c[None, :] * x_c + y * x_h + x * x_w
        patches = tl.load(x_ptr + where, mask=inside, other=0.0)
        known = (k[:, None] < COLUMNS) & (out[None, :] < D)
        weight = tl.load(w_ptr + out[None, :] * COLUMNS + k[:, None], mask=known, other=0.0)
        acc = tl.dot(patches, weight, acc, input_precision="ieee")
    acc += tl.load(bias_ptr + out, mask=out < D, other=0.0).to(tl.float32)[None, :]
    if GELU:
        acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.7071067811865476))
    at = rows[:, None].to(tl.int64) * D + out[None, :]
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=(rows[:, None] < total) & (out[None, :] < D))
