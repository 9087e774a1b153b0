"""The public names of leanformer, imported when the first of them is asked for; rooms of their own come one by one."""

from typing import TYPE_CHECKING

from . import methods as _methods
from ._version import __version__
from .backbones import adopt, create, resize, with_head
from .core import (
    METHODS,
    Block,
    Branch,
    Method,
    apply,
    blocks_of,
    calibrate,
    card_of,
    fuse,
    kept_patches,
    parse_method,
    recalibrate,
    save,
    with_options,
)
from .measure import describe
from .methods import *  # noqa: F403
from .speed import load, optimize

if TYPE_CHECKING:  # they need accelerate or matplotlib: each is imported when it is asked for
    from . import data, export, hub, measure, tasks, train, visualise
    from .papers import recipes
    from .papers.official import from_official, to_official
    from .prediction import predict
    from .search.make_lean import lean
    from .tasks.pyramid import features

__all__ = [
    "METHODS",
    "Block",
    "Branch",
    "Method",
    "__version__",
    "adopt",
    "apply",
    "blocks_of",
    "calibrate",
    "card_of",
    "create",
    "data",
    "describe",
    "export",
    "features",
    "from_official",
    "fuse",
    "hub",
    "kept_patches",
    "lean",
    "load",
    "measure",
    "optimize",
    "parse_method",
    "predict",
    "recalibrate",
    "recipes",
    "resize",
    "save",
    "tasks",
    "to_official",
    "train",
    "visualise",
    "with_head",
    "with_options",
]
__all__ += _methods.__all__
