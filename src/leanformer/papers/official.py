"""The one door for official checkpoints: from_official and to_official, for every system."""

from . import evit, gfnet, lvvit, metaformer, repa, riformer, sit  # noqa: F401  (they make their classes known)
from .door import CONVERTERS, RELEASED, Converter, KeyMap, from_official, to_official

__all__ = ["CONVERTERS", "RELEASED", "Converter", "KeyMap", "from_official", "to_official"]
