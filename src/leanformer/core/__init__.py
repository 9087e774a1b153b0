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
from .method import METHODS, Build, Fusible, Method, method_from, parse_method, select
from .objective import Objective, Step, Sum, View, taps
from .plan import apply, fold, fuse, share, with_options
from .rewrite import Rewrite, replaced

__all__ = [
    "METHODS",
    "Block",
    "Branch",
    "Build",
    "Card",
    "Fittable",
    "Fusible",
    "Grid",
    "Layout",
    "Method",
    "Objective",
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
    "fold",
    "fuse",
    "has_card",
    "input_of",
    "method_from",
    "parse_method",
    "pooling_of",
    "read",
    "recalibrate",
    "replaced",
    "save",
    "select",
    "set_card",
    "share",
    "taps",
    "versions",
    "with_options",
    "write_atomically",
]
