# pyright: reportCallIssue=false, reportOperatorIssue=false, reportArgumentType=false
"""The kernel behind `choose`: a program counts, for a few scores of one image, those that are ahead of them.

B batch, P scores, K kept.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, CHUNK = 32, 128


def launch(score: Tensor, keep: int) -> Tensor:
    """score (B, P) → the indices of the `keep` highest, (B, K)."""
    batch, scores = score.shape
    score = score if score.stride(1) == 1 else score.contiguous()
    chosen = torch.empty(batch, keep, dtype=torch.long, device=score.device)
    _choose_kernel[(batch, triton.cdiv(scores, ROWS))](
        score, chosen, score.stride(0), scores, keep, ROWS=ROWS, CHUNK=CHUNK, num_warps=4
    )
    return chosen


@triton.jit
def _choose_kernel(
    score_ptr, chosen_ptr, score_b, scores: tl.constexpr, keep, ROWS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    score_ptr += image * score_b
    mine = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real = mine < scores
    a = tl.load(score_ptr + mine, mask=real, other=float("-inf"))
    a = tl.where(a == a, a, float("-inf"))
    rank = tl.zeros((ROWS,), tl.int32)
    for start in range(0, scores, CHUNK):
        others = start + tl.arange(0, CHUNK)
        b = tl.load(score_ptr + others, mask=others < scores, other=float("-inf"))
        b = tl.where(b == b, b, float("-inf"))
        earlier = (b[None, :] == a[:, None]) & (others[None, :] < mine[:, None])
        ahead = (b[None, :] > a[:, None]) | earlier
        rank += tl.sum((ahead & (others < scores)[None, :]).to(tl.int32), 1)
    tl.store(chosen_ptr + image * keep + rank, mine.to(tl.int64), mask=real & (rank < keep))
