"""optimize: the fastest equivalent of a fused model on this device, at this batch size and dtype."""

from .files import PlainForm, load
from .memory import chip_name
from .optimized import Optimized
from .search import optimize, rewritten

__all__ = ["Optimized", "PlainForm", "chip_name", "load", "optimize", "rewritten"]
