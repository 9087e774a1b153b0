"""Measuring: parameters, MACs, throughput, latency; models come in as values, results go out as data."""

from .bench import Comparison, Measured, compare
from .budget import keep_rate_for
from .counting import Count, count, count_modules
from .describe import Description, describe
from .profile import COMPONENTS, Profile, Profiles, profile
from .results import hardware, read_results, record, write_result

__all__ = [
    "COMPONENTS",
    "Comparison",
    "Count",
    "Description",
    "Measured",
    "Profile",
    "Profiles",
    "compare",
    "count",
    "count_modules",
    "describe",
    "hardware",
    "keep_rate_for",
    "profile",
    "read_results",
    "record",
    "write_result",
]
