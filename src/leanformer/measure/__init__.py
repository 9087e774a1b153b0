"""Measuring: parameters, MACs, throughput, latency; models come in as values, results go out as data."""

from .bench import Comparison, Measured, compare
from .budget import keep_rate_for
from .counting import Count, count, count_modules
from .describe import Description, describe
from .results import hardware, read_results, record, write_result

__all__ = [
    "Comparison",
    "Count",
    "Description",
    "Measured",
    "compare",
    "count",
    "count_modules",
    "describe",
    "hardware",
    "keep_rate_for",
    "read_results",
    "record",
    "write_result",
]
