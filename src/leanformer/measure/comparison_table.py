"""The table of a comparison: one line a model and mode, without the columns that the device does not tell."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from rich.table import Table


def comparison_table(comparison: Any) -> Table:
    """A comparison for people.

    Args:
        comparison: what `compare` gave.
    """
    peak = ", ".join(f"{dtype} {rate / 1e12:.3g} TFLOP/s" for dtype, rate in comparison.peak.items())
    columns: dict[str, Callable[[Any], str | None]] = {
        "model": lambda row: row.model,
        "mode": lambda row: row.mode,
        "batch": lambda row: str(row.batch),
        "img/s": lambda row: f"{row.throughput:,.0f}",
        "±": lambda row: f"{row.spread:.1%}",
        "speed-up": lambda row: f"{row.speedup:.2f}x",
        "± ": lambda row: f"{row.speedup_spread:.1%}",
        "p50 ms": lambda row: f"{row.latency_p50 * 1e3:.2f}",
        "p99 ms": lambda row: f"{row.latency_p99 * 1e3:.2f}",
        "params M": lambda row: f"{row.parameters / 1e6:.2f}",
        "MACs G": lambda row: f"{row.macs / 1e9:.3f}",
        "of peak": lambda row: f"{row.share_of_peak:.0%}",
        "MiB": lambda row: None if row.peak_memory is None else f"{row.peak_memory / 2**20:,.0f}",
        "mJ/img": lambda row: None if row.joules_per_image is None else f"{row.joules_per_image * 1e3:.1f}",
    }
    filled = {name: show for name, show in columns.items() if any(show(row) is not None for row in comparison.rows)}
    table = Table(title=f"on {comparison.device}, matrix peak {peak}", title_justify="left")
    for name in filled:
        table.add_column(name, justify="left" if name in ("model", "mode") else "right")
    for _, rows in groupby(comparison.rows, key=lambda row: (row.dtype, row.batch)):
        table.add_section()
        for row in rows:
            table.add_row(*(show(row) or "" for show in filled.values()))
    return table
