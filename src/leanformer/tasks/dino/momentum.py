"""The teacher as a moving average of the student.

θ_t ← λ θ_t + (1 − λ) θ_s          running statistics of batch norms are the teacher's own
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from .objective import DINO

Pairs = list[tuple[Tensor, Tensor]]


def averaged_pairs(slow: nn.Module, fast: nn.Module) -> Pairs:
    """The tensors of an average beside those that it follows, but for the statistics of its batch norms.

    Args:
        slow: The average.
        fast: A model with the same tensors.
    """
    own = {id(b) for m in slow.modules() if isinstance(m, _BatchNorm) for b in m.buffers()}
    sides = (side.state_dict(keep_vars=True).values() for side in (slow, fast))
    return [(average, now) for average, now in zip(*sides, strict=True) if id(average) not in own]


class Momentum:
    """The teacher in the place of the loop's moving average; `module` is its backbone."""

    def __init__(self, objective: DINO):
        self.objective, self.module = objective, objective.teacher
        self._known: tuple[nn.Module, list[Tensor], list[Tensor], Pairs] | None = None
        """The student, averages and numbers, and what is only copied: to look them up takes longer than to average."""

    @torch.no_grad()
    def update(self, student: nn.Module, step: int) -> None:
        """Move teacher and head towards the student.

        Args:
            student: What is trained.
            step: The update's number; the momentum is the objective's.
        """
        mine = self.objective
        if self._known is None or self._known[0] is not student:
            pairs = averaged_pairs(mine.teacher, student) + averaged_pairs(mine.teacher_head, mine.head)
            slow, fast = ([pair[side] for pair in pairs if pair[0].is_floating_point()] for side in (0, 1))
            self._known = student, slow, fast, [pair for pair in pairs if not pair[0].is_floating_point()]
        _, slow, fast, counters = self._known
        torch._foreach_lerp_(slow, fast, 1 - mine.momentum)
        for average, now in counters:
            average.copy_(now)
