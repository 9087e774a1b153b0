"""Token slimming in one pass: the softmax over the patches, the mixtures, and the prefix tokens that pass by.

    A = softmax(logitsᵀ + prior) over the N patches        (M, N), never written
    u = [prefix | A X]                                     (B, prefix + M, C)

The weights live on the chip only, logits are read as the linear before gives them, and nothing is put together
afterwards. On a CPU the plain form runs.

B batch, N patches, M mixtures of them, C channels.
"""

import torch
from torch import Tensor

from ..slimming import slim


@torch.library.custom_op("leanformer::slim_in_one_pass", mutates_args=(), device_types="cpu")
def slim_in_one_pass(x: Tensor, logits: Tensor, prior: Tensor | None, prefix: int) -> Tensor:
    """u (B, prefix + M, C) of x (B, prefix + N, C), logits (B, N, M) and a prior (M, N).

    >>> x, logits = torch.tensor([[[9.0], [1.0], [3.0]]]), torch.tensor([[[0.0, 50.0], [0.0, 0.0]]])
    >>> slim_in_one_pass(x, logits, None, prefix=1)[0, :, 0]
    tensor([9., 2., 1.])
    """
    return slim_in_one_pass_reference(x, logits, prior, prefix)


@slim_in_one_pass.register_kernel("cuda")
def _(x, logits, prior, prefix):
    from .slim_triton import launch

    return launch(x, logits, prior, prefix)


@slim_in_one_pass.register_fake
def _(x, logits, prior, prefix):
    return x.new_empty(x.shape[0], prefix + logits.shape[2], x.shape[2])


def slim_in_one_pass_reference(x: Tensor, logits: Tensor, prior: Tensor | None, prefix: int) -> Tensor:
    """The same in plain torch."""
    weights = logits.transpose(1, 2)  # (B, M, N)
    if prior is not None:
        weights = weights + prior
    return slim(x, weights.softmax(2), prefix)
