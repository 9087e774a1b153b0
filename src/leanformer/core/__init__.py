"""The slots, the methods' contract, apply and fuse, and self-describing checkpoints."""

from .block import Block, Branch, Grid, Layout, Slot, blocks_of
from .calibrate import Fittable, calibrate, recalibrate
from .card import (
    Card,
    card_json,
    card_of,
    has_card,
    input_of,
    pooling_of,
    read,
    save,
    set_card,
    versions,
    write_atomically,
)
from .choices import Choices
from .environment import VARIABLES, environment
from .method import METHODS, Build, Fusible, Method, method_from, parse_method, parse_options, select
from .objective import Objective, Step, Sum, View, taps
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
from .rewrite import LocalRewrite, Rewrite

__all__ = [
    "FUSED",
    "METHODS",
    "VARIABLES",
    "Block",
    "Branch",
    "Build",
    "Card",
    "Choices",
    "Decision",
    "Fittable",
    "Fusible",
    "Grid",
    "HasPlainForm",
    "Layout",
    "LocalRewrite",
    "Method",
    "NeedsGrid",
    "Objective",
    "Reducer",
    "Rewrite",
    "Slot",
    "Step",
    "Sum",
    "View",
    "apply",
    "blocks_of",
    "calibrate",
    "card_json",
    "card_of",
    "decision_paths",
    "environment",
    "fold",
    "fuse",
    "has_card",
    "input_of",
    "kept_patches",
    "method_from",
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
    "share",
    "single_patches",
    "taps",
    "trace",
    "traced",
    "versions",
    "with_options",
    "write_atomically",
]
