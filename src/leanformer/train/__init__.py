"""Training and distillation: `fit` for any model with any methods on it, `evaluate`, objectives, data."""

from ..data.label_maps import LabelMaps, write_label_maps
from ..data.places import TokenLabelled, with_places
from ..data.sources import Arrays, Files, open_data
from .answer_features import AnswerFeatures
from .engine import fit
from .evaluation import Evaluation, evaluate
from .features import Features, extract_features
from .neighbours import Judgement, knn_accuracy
from .objectives import (
    CrossEntropy,
    DistillationToken,
    FeatureDistillation,
    HardDistillation,
    RelationDistillation,
    SoftDistillation,
    parse_objective,
)
from .parallel import quick_precision
from .probe import Probe, linear_probe
from .profiling import profile
from .recipe import Recipe, plain
from .result import Result
from .runs import Settings, read_run
from .task import Task
from .token_labels import Annotator, TokenLabels

__all__ = [
    "Annotator",
    "AnswerFeatures",
    "Arrays",
    "CrossEntropy",
    "DistillationToken",
    "Evaluation",
    "FeatureDistillation",
    "Features",
    "Files",
    "HardDistillation",
    "Judgement",
    "LabelMaps",
    "Probe",
    "Recipe",
    "RelationDistillation",
    "Result",
    "Settings",
    "SoftDistillation",
    "Task",
    "TokenLabelled",
    "TokenLabels",
    "evaluate",
    "extract_features",
    "fit",
    "knn_accuracy",
    "linear_probe",
    "open_data",
    "parse_objective",
    "plain",
    "profile",
    "quick_precision",
    "read_run",
    "with_places",
    "write_label_maps",
]
