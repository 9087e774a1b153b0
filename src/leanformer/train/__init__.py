"""Training and distillation: `fit` for any model with any methods on it, `evaluate`, objectives, data."""

from .data import Arrays, Files, open_data
from .engine import fit
from .evaluate import Evaluation, evaluate
from .loop import Result
from .objectives import (
    CrossEntropy,
    DistillationToken,
    FeatureDistillation,
    HardDistillation,
    RelationDistillation,
    SoftDistillation,
    parse_objective,
)
from .recipe import Recipe, plain
from .runs import Settings, read_run

__all__ = [
    "Arrays",
    "CrossEntropy",
    "DistillationToken",
    "Evaluation",
    "FeatureDistillation",
    "Files",
    "HardDistillation",
    "Recipe",
    "RelationDistillation",
    "Result",
    "Settings",
    "SoftDistillation",
    "evaluate",
    "fit",
    "open_data",
    "parse_objective",
    "plain",
    "read_run",
]
