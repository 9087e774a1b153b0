"""Token slimming in one pass: the softmax over the patches, the mixtures, and the prefix tokens that pass by.

    A = softmax(logitsᵀ + prior) over the N patches        (M, N), never written
    u = [prefix | A X]                                     (B, prefix + M, C)

The weights live on the chip only, logits are read as the linear before gives them, and nothing is put together
afterwards. On a CPU the plain form runs.

B batch, N patches, M mixtures of them, C channels.
"""

from torch import Tensor

from ....layers.kernels import operator
from ..slimming import slim


def _shapes(x, logits, prior, prefix):
    return x.new_empty(x.shape[0], prefix + logits.shape[2], x.shape[2])


@operator(f"{__package__}.slim_triton", _shapes)
def slim_in_one_pass(x: Tensor, logits: Tensor, prior: Tensor | None, prefix: int) -> Tensor:
    """u (B, prefix + M, C) of x (B, prefix + N, C), logits (B, N, M) and a prior (M, N).

    >>> import torch
    >>> x, logits = torch.tensor([[[9.0], [1.0], [3.0]]]), torch.tensor([[[0.0, 50.0], [0.0, 0.0]]])
    >>> slim_in_one_pass(x, logits, None, prefix=1)[0, :, 0]
    tensor([9., 2., 1.])
    """
    weights = logits.transpose(1, 2)  # (B, M, N)
    if prior is not None:
        weights = weights + prior
    return slim(x, weights.softmax(2), prefix)
