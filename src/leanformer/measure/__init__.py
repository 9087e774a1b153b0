"""Measuring: parameters, MACs, throughput, latency; models come in as values, results go out as data."""

from .counting import Count, count, count_modules

__all__ = ["Count", "count", "count_modules"]
