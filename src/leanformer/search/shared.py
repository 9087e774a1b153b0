"""One set of weights for several speeds: plans take turns while the one student trains.

Only plans that differ in run-time options can share weights: the same method at the model's own size, with other
shares of the tokens in other blocks. The student has the method in every block that any plan uses.

    update 0: plan A     update 1: plan B     update 2: plan C     update 3: plan A …
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..core import METHODS, Objective, Sum, apply, blocks_of
from ..train.learner import choose_objective
from .plan import Plan, Space


def shareable(space: Space) -> list[str]:
    """Names of the methods whose plans can share weights.

    Args:
        space: what plans are made from.
    """
    return [name for name in space.acting_on("tokens") if "keep_rate" in METHODS[name].runtime]


class Shared:
    """The student that serves several plans, and the models that come out of it.

    Args:
        teacher: the unchanged model.
        plans: plans of one method at the teacher's own size; one may change nothing.
    """

    def __init__(self, teacher: nn.Module, plans: Sequence[Plan]):
        names = sorted({name for plan in plans for name, _ in plan.shares})
        if len(names) > 1 or len({plan.size for plan in plans}) > 1:
            raise ValueError(f"plans of several methods or sizes cannot share weights: {', '.join(map(str, plans))}")
        self.name = names[0] if names else None
        self.teacher, self.plans = teacher, tuple(plans)
        self.blocks = sorted({block for plan in plans for block in plan.of_method(names[0])}) if names else []
        strongest = {b: max(plan.of_method(names[0]).get(b, 0.0) for plan in plans) for b in self.blocks}
        self.student = apply(teacher, *(METHODS[name].with_shares(strongest) for name in names))

    def rates(self, plan: Plan) -> tuple[float, ...]:
        """Share of the tokens that stays in each of the blocks, in one of the plans."""
        return tuple(1 - plan.of_method(self.name or "").get(block, 0.0) for block in self.blocks)

    def model(self, student: nn.Module, plan: Plan) -> nn.Module:
        """One plan's model with the student's weights, and with the method in the blocks of this plan alone: where no
        token goes it would take time for nothing."""
        model = plan.build(self.teacher)
        model.load_state_dict(student.state_dict())
        return model

    def objective(self) -> Objective:
        """Soft answers of the teacher, or its features where it has no head; the plans in turn."""
        learnt = choose_objective("soft", self.student, {"teacher": self.teacher}, "auto")
        return _InTurn(learnt, self.student, self.blocks, [self.rates(plan) for plan in self.plans])


class _InTurn(Sum):
    """What is learnt from the teacher, with the next plan's shares set before each update."""

    def __init__(
        self, learnt: Objective, student: nn.Module, blocks: Sequence[int], rates: Sequence[tuple[float, ...]]
    ):
        super().__init__(learnt)
        every = list(blocks_of(student).values())
        self.mixers: list[Any] = [every[block].mix for block in blocks]  # in a list: the student's, not this module's
        self.rates = list(rates)

    def advance(self, update: int, total: int, updates_per_epoch: int, groups: list[dict[str, Any]]) -> None:
        for mixer, rate in zip(self.mixers, self.rates[update % len(self.rates)], strict=True):
            mixer.keep_rate = rate
