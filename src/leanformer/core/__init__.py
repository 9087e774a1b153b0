"""The slots, the methods' contract, apply and fuse, and self-describing checkpoints."""

from .answers import HasEvidence, HasFixedPass, OptimisesInside, evidence_of
from .block import Block, Branch, Grid, Layout, Slot, blocks_of, slots_of
from .calibration import Calibratable, calibrate, recalibrate, starts_from, uncalibrated
from .card import (
    Card,
    card_json,
    card_of,
    classes_of,
    has_card,
    read,
    save,
    set_card,
    set_classes,
    versions,
    write_atomically,
)
from .checked import one_line
from .choices import Choices
from .files import check_file
from .inputs import check_whole, halved, image_size, input_of, pooling_of, set_input
from .method import METHODS, Build, Fusible, Method, method_from, methods_on, parse_method, select
from .objective import Objective, Step, Sum, View, learnable, taps
from .optimised import HasPlainForm, plain_of
from .plan import apply, fold, fuse, share, with_options
from .reduce import (
    FUSED,
    Decision,
    NeedsGrid,
    Reducer,
    decision_paths,
    kept_patches,
    reducers,
    single_patches,
    trace,
    traced,
)
from .rewrite import H200, AnyRewrite, LocalRewrite, Rewrite, ThreeProducts
from .spec import parse_options
from .variables import VARIABLES, environment

__all__ = [
    "FUSED",
    "H200",
    "METHODS",
    "VARIABLES",
    "AnyRewrite",
    "Block",
    "Branch",
    "Build",
    "Calibratable",
    "Card",
    "Choices",
    "Decision",
    "Fusible",
    "Grid",
    "HasEvidence",
    "HasFixedPass",
    "HasPlainForm",
    "Layout",
    "LocalRewrite",
    "Method",
    "NeedsGrid",
    "Objective",
    "OptimisesInside",
    "Reducer",
    "Rewrite",
    "Slot",
    "Step",
    "Sum",
    "ThreeProducts",
    "View",
    "apply",
    "blocks_of",
    "calibrate",
    "card_json",
    "card_of",
    "check_file",
    "check_whole",
    "classes_of",
    "decision_paths",
    "environment",
    "evidence_of",
    "fold",
    "fuse",
    "halved",
    "has_card",
    "image_size",
    "input_of",
    "kept_patches",
    "learnable",
    "method_from",
    "methods_on",
    "one_line",
    "parse_method",
    "parse_options",
    "plain_of",
    "pooling_of",
    "read",
    "recalibrate",
    "reducers",
    "save",
    "select",
    "set_card",
    "set_classes",
    "set_input",
    "share",
    "single_patches",
    "slots_of",
    "starts_from",
    "taps",
    "trace",
    "traced",
    "uncalibrated",
    "versions",
    "with_options",
    "write_atomically",
]
