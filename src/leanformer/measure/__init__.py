"""Measuring: parameters, MACs, throughput, latency; models come in as values, results go out as data."""

from .bench import Comparison, Measured, compare
from .budget import keep_rate_for
from .components import COMPONENTS, Profile, Profiles, profile
from .counting import Count, count, count_modules
from .description import Description, describe
from .graphs import capture, graphed
from .load_by_others import LoadByOthers
from .rates import matrix_peak, memory_rate
from .repeat_runs import disagreements
from .results import (
    choose,
    command,
    command_line,
    commit,
    flat,
    hardware,
    read_results,
    read_rows,
    record,
    rows_to_resume,
    write_result,
)
from .terminal import as_text, console
from .timing import (
    Clock,
    Timing,
    interleave,
    prepare,
    shared_kernels,
    time_calls,
)

__all__ = [
    "COMPONENTS",
    "Clock",
    "Comparison",
    "Count",
    "Description",
    "LoadByOthers",
    "Measured",
    "Profile",
    "Profiles",
    "Timing",
    "as_text",
    "capture",
    "choose",
    "command",
    "command_line",
    "commit",
    "compare",
    "console",
    "count",
    "count_modules",
    "describe",
    "disagreements",
    "flat",
    "graphed",
    "hardware",
    "interleave",
    "keep_rate_for",
    "matrix_peak",
    "memory_rate",
    "prepare",
    "profile",
    "read_results",
    "read_rows",
    "record",
    "rows_to_resume",
    "shared_kernels",
    "time_calls",
    "write_result",
]
