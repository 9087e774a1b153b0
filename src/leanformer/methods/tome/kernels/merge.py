"""Token merging in one pass: the residual sum, the tokens that stay, the means of those that merge, and the next norm.

    x' = x + y                                                          (B, N, C), never written whole
    u  = [prefix | x' of the S − r that stay | means over T]            (B, N − r, C), and their sizes (B, N − r)
    z  = LayerNorm(u)

Each token is read once, by the program that writes the one it becomes part of. On a CPU the plain form runs.

B batch, N tokens, C channels, S and T the two halves of the patches, r merged pairs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ....layers.kernels import operator
from ..merging import merge

MOST_CHANNELS = 1024


def _shapes(x, y, size, decided, merged, prefix, weight, bias, eps):
    u = x.new_empty(x.shape[0], x.shape[1] - merged, x.shape[2])
    z = torch.empty_like(u) if weight is not None else x.new_empty(0)
    return u, z, x.new_empty(u.shape[:2], dtype=torch.promote_types(x.dtype, torch.float32))


@operator(f"{__package__}.merge_triton", _shapes)
def merge_in_one_pass(
    x: Tensor, y: Tensor, size: Tensor | None, decided: Tensor, merged: int, prefix: int, weight: Tensor | None,
    bias: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """u, z and the new sizes of x and y (B, N, C), sizes (B, N) or None where all are 1, and what `Match` gave.

    Without a weight z is empty.

    >>> x, decided = torch.tensor([[[1.0], [3.0], [9.0], [9.0]]]), torch.tensor([[[1, 0], [1, 0]]])
    >>> u, _, size = merge_in_one_pass(x, 0 * x, None, decided, 1, 0, None, None, 1e-6)
    >>> u.flatten(), size
    (tensor([1., 6., 9.]), tensor([[1., 2., 1.]]))
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    sizes = x.new_ones(x.shape[:2], dtype=exact) if size is None else size.to(exact)  # (B, N)
    u, sizes = merge(x + y, sizes, decided, merged, prefix)
    if weight is None:
        return u, x.new_empty(0), sizes
    return u, F.layer_norm(u, u.shape[-1:], weight, bias, eps), sizes
