"""Matrix products that do more in the same pass: the activation behind them, the sum with another product.

    linear_gelu(x) = gelu(x Wᵀ + b)                              one product with the activation in its epilogue
    three_products(x) = gelu(x W_inᵀ + b_in) W_outᵀ + x Wᵀ + b   two, and one that adds to the second in place

On a GPU the activation in the epilogue is the tanh form of GELU: up to 5e-4 from the exact one, less than bf16 rounds.
float32 has the digits to tell them apart: there the activation is a pass of its own behind the product, and exact.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("leanformer::linear_gelu", mutates_args=())
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(x Wᵀ + b): (…, C) → (…, R).

    >>> linear_gelu(torch.zeros(2, 3, 4), torch.zeros(5, 4), torch.zeros(5)).shape
    torch.Size([2, 3, 5])
    """
    rows = _activated(x.reshape(-1, x.shape[-1]), weight, bias)
    return rows.view(*x.shape[:-1], -1)


@linear_gelu.register_fake
def _(x, weight, bias):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def linear_gelu_reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same in plain torch."""
    return F.gelu(F.linear(x, weight, bias))


@torch.library.custom_op("leanformer::three_products", mutates_args=())
def three_products(x: Tensor, w: Tensor, b: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor) -> Tensor:
    """gelu(x W_inᵀ + b_in) W_outᵀ + x Wᵀ + b: (…, C) → (…, C).

    >>> c = torch.zeros(4)
    >>> three_products(torch.zeros(2, 4), torch.eye(4), c, torch.eye(4), c, torch.eye(4)).shape
    torch.Size([2, 4])
    """
    rows = x.reshape(-1, x.shape[-1])
    y = F.linear(rows, w, b)
    y.addmm_(_activated(rows, w_in, b_in), w_out.t())
    return y.view_as(x)


@three_products.register_fake
def _(x, w, b, w_in, b_in, w_out):
    return x.new_empty(x.shape)


def three_products_reference(x: Tensor, w: Tensor, b: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor) -> Tensor:
    """The same in plain torch."""
    return F.linear(F.gelu(F.linear(x, w_in, b_in)), w_out) + F.linear(x, w, b)


def _activated(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(rows Wᵀ + b) for rows (M, C): (M, R)."""
    if rows.dtype in (torch.bfloat16, torch.float16):
        return torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
    return torch.ops.aten.gelu_(F.linear(rows, weight, bias))
