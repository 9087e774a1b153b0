"""Backbones: timm's, adopted, and the families that timm lacks."""

from . import generic, gfnet, lvvit_models, metaformer
from .build import create, create_teacher, from_card, load
from .head import knows_classes, with_head
from .registry import MODELS, register
from .resizing import resize
from .timm import adopt
from .weights import load_weights, read_weights

__all__ = [
    "MODELS",
    "adopt",
    "create",
    "create_teacher",
    "from_card",
    "generic",
    "gfnet",
    "knows_classes",
    "load",
    "load_weights",
    "lvvit_models",
    "metaformer",
    "read_weights",
    "register",
    "resize",
    "with_head",
]
