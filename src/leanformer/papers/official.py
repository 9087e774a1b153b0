"""The one door for official checkpoints: from_official and to_official, for every system."""

from functools import partial

from ..backbones.registry import MODELS
from ..lazy import READERS
from . import (  # noqa: F401  (they make themselves known)
    efficientnet,
    evit,
    gfnet,
    lvvit,
    metaformer,
    repa,
    riformer,
    sit,
)
from .door import CONVERTERS, RELEASED, Converter, KeyMap, from_official, read_official, to_official

for _name in RELEASED:
    if _name in MODELS:  # so that `create` reads the authors' file
        READERS[_name] = partial(read_official, _name)

__all__ = ["CONVERTERS", "RELEASED", "Converter", "KeyMap", "from_official", "to_official"]
