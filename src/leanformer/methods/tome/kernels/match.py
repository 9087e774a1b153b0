"""Which patches merge, from the keys of all heads in one kernel: metric, cosines, partners and ranks.

    k̄ = mean over heads of the keys                                      (B, P, D)
    best_i, partner_i = max over T of the cosine of k̄_i, i in S           (B, S)
    rank of i = #{j : best_j > best_i  or  best_j = best_i and j < i}

An image has a program of its own, which holds the cosines of S and T and counts ranks where they are. On a CPU the
plain form runs.

B batch, H heads, P patches, S and T the two halves of these, D channels of a head.
"""

import torch
from torch import Tensor

from ....layers.kernels import operator
from ..merging import Match

HEAD_DIMS = (16, 32, 64, 128)
"""Channels of a head that the kernel takes."""
MOST_SOURCES = 128
"""How large S may be: 256 patches have so many."""
MOST_NUMBERS = MOST_SOURCES * 64
"""How large S·D may be: each number takes 16 bytes of the memory that a program's threads share, 227 KiB on an H200."""


def takes(keys: Tensor) -> bool:
    """Whether the kernel takes keys of this shape.

    >>> takes(torch.zeros(1, 2, 196, 64)), takes(torch.zeros(1, 2, 196, 128)), takes(torch.zeros(1, 196, 64))
    (True, False, False)
    """
    sources, dim = (keys.shape[-2] + 1) // 2, keys.shape[-1]
    return keys.ndim == 4 and dim in HEAD_DIMS and sources <= MOST_SOURCES and sources * dim <= MOST_NUMBERS


def _shapes(keys):
    return keys.new_empty(keys.shape[0], 2, (keys.shape[2] + 1) // 2, dtype=torch.long)


@operator(f"{__package__}.match_triton", _shapes)
def match_keys(keys: Tensor) -> Tensor:
    """Keys (B, H, P, D) → (B, 2, S): of each patch of S how many merge before it, and its partner in T.

    >>> match_keys(torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [0.1, 1.0], [1.0, 0.5]]]]))
    tensor([[[1, 0],
             [1, 0]]])
    """
    return Match()(keys)
