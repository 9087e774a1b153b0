"""The highest scores of each row, highest first, by counting: no sorting.

    rank of i = #{j : a_j > a_i  or  a_j = a_i and j < i},     chosen[rank of i] = i where that is below K

A few hundred scores cost some ten thousand comparisons, which one small kernel makes at once; the library's selection
and sort take two kernels of many steps. Equal scores stay in their order, and what is not a number comes last. On a CPU
the library sorts.

B batch, P scores, K kept.
"""

import torch
from torch import Tensor

from ....layers.kernels import operator

MOST_SCORES = 4096


@operator(f"{__package__}.choose_triton", lambda score, keep: score.new_empty(score.shape[0], keep, dtype=torch.long))
def choose_by_counting(score: Tensor, keep: int) -> Tensor:
    """The indices of the `keep` highest scores (B, P) → (B, K).

    >>> choose_by_counting(torch.tensor([[0.1, 0.7, 0.2]]), 2)
    tensor([[1, 2]])
    """
    return score.topk(keep, dim=1).indices
