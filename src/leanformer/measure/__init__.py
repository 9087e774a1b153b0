"""Measuring: parameters, MACs, throughput, latency; models come in as values, results go out as data."""

from .counting import Count, count, count_modules
from .describe import Description, describe

__all__ = ["Count", "Description", "count", "count_modules", "describe"]
