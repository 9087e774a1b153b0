"""Distillation of a backbone without a head: the student's features follow the teacher's, and no labels are read.

    loss = Σ ‖s − t‖² / Σ ‖t − mean t‖²          the share of what differs between images that the student misses

s, t features of student and teacher, (B, C).
"""

import dataclasses
from typing import Any

from torch import Tensor, nn

from ..core import Step
from ..data.sources import Data, Stream
from .evaluation import Conditions
from .judging import NEIGHBOURS, Neighbours, judge_by_neighbours
from .objectives import FromTeacher, logits_of, objective

FLOOR = 1e-3
"""The least of the features' mean square that counts as different between images."""


def missed_share(student: Tensor, teacher: Tensor) -> Tensor:
    """How much of what differs between the teacher's features (B, C) the student's miss; 0: nothing, 1: all of it.

    >>> import torch
    >>> teacher = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> missed_share(teacher.mean(0).expand(2, 2), teacher).item()
    1.0
    """
    s, t = student.float(), teacher.float()
    whole = (t - t.mean(0)).square().sum()
    return (s - t).square().sum() / whole.clamp_min(FLOOR * t.square().sum())


@objective("answer_features")
class AnswerFeatures(FromTeacher):
    """The teacher's features as the target of the student's; both are backbones without a head.

    Where the images have labels, these are only used to judge the features by neighbours.

    >>> AnswerFeatures().needs_labels()
    False
    """

    def __init__(self, weight: float = 1.0, teacher: str = "teacher"):
        super().__init__(weight, teacher)
        self.bank: Data | None = None

    def data_form(self, data: Any, seed: int) -> Any:
        """The images without their labels, which are kept for judging."""
        if not data.labelled:
            return data
        self.bank = None if isinstance(data, Stream) else data
        return dataclasses.replace(data, labelled=False)

    def forward(self, step: Step) -> dict[str, Tensor]:
        s, t = logits_of(step.student.output), logits_of(step.teacher(self.teacher).output)
        if s.shape != t.shape:
            raise ValueError(f"the student's features are {s.shape[-1]} wide and the teacher's {t.shape[-1]}")
        return {"features": self.weight * missed_share(s, t)}

    def judge(self, model: nn.Module, data: Data, config: dict[str, Any], how: Conditions) -> Neighbours:
        """k-NN accuracy of the features, called as `train.evaluation.measure` is."""
        return judge_by_neighbours(model, data, self.bank, NEIGHBOURS, config, how)


def features_of(teachers: dict[str, nn.Module]) -> AnswerFeatures:
    """What a backbone without a head learns: the features of its teacher, which has none either.

    Args:
        teachers: By name; the one called teacher is taken, or the first.

    Raises:
        ValueError: There is no teacher, or it has a head.
    """
    if not teachers:
        raise ValueError(
            "a backbone without a head learns from a teacher's features: give a teacher, or pre-train it with "
            "lf.tasks.dino.fit (leanformer train --task dino)"
        )
    name = "teacher" if "teacher" in teachers else next(iter(teachers))
    if getattr(teachers[name], "num_classes", 0) != 0:
        raise ValueError(f"the student has no head but the teacher '{name}' has: take it off with lf.with_head(…, 0)")
    return AnswerFeatures(teacher=name)
