"""optimize: the fastest equivalent of a fused model on this device, at this batch size and dtype."""

from .search import Optimized, optimize, rewritten

__all__ = ["Optimized", "optimize", "rewritten"]
