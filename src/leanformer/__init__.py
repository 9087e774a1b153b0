"""leanformer: MetaFormer-structured vision models, several times faster at the same accuracy."""

from . import data, export, measure, train, visualise
from .backbones import adopt, create, resize, with_head
from .core import (
    METHODS,
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
from .methods import __all__ as _methods
from .papers import recipes
from .papers.official import from_official, to_official
from .speed import load, optimize

__all__ = [
    "METHODS",
    "adopt",
    "apply",
    "blocks_of",
    "calibrate",
    "card_of",
    "create",
    "data",
    "describe",
    "export",
    "from_official",
    "fuse",
    "kept_patches",
    "load",
    "measure",
    "optimize",
    "parse_method",
    "recalibrate",
    "recipes",
    "resize",
    "save",
    "to_official",
    "train",
    "visualise",
    "with_head",
    "with_options",
    *_methods,
]
