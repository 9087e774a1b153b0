"""The one door for official checkpoints: from_official and to_official, for every system."""

from .door import CONVERTERS, RELEASED, Converter, KeyMap, from_official, to_official
from .evit import keys as evit  # noqa: F401
from .gfnet import keys as gfnet  # noqa: F401
from .lvvit import keys as lvvit  # noqa: F401
from .metaformer import keys as metaformer  # noqa: F401
from .repa import keys as repa  # noqa: F401
from .riformer import keys as riformer  # noqa: F401
from .sit import keys as sit  # noqa: F401

__all__ = ["CONVERTERS", "RELEASED", "Converter", "KeyMap", "from_official", "to_official"]
