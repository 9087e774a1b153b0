"""The same measurement twice: do two runs agree within the spread that they print?

    |a - b| ≤ sₐ a + s_b b          a, b the medians of the two runs, s their spreads

Throughputs agree if the machine is as free in both runs; speed-ups should agree in any case.
"""

from collections.abc import Iterable, Mapping
from typing import Any

FIGURES = {"throughput": "spread", "speedup": "speedup_spread"}
"""What is compared → the column with its spread."""
KEY = ("model", "mode", "batch", "dtype")


def disagreements(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each figure of two benches that differs by more than both spreads.

    Args:
        before: the rows of one run.
        after: the rows of the other; rows pair by model, mode, batch and dtype.

    Raises:
        ValueError: where no row is in both.

    >>> row = {"model": "vit", "mode": "eager", "batch": 1, "dtype": "float32", "throughput": 100.0, "spread": 0.02}
    >>> disagreements([row], [row | {"throughput": 103.0}])
    []
    >>> disagreements([row], [row | {"throughput": 110.0}])
    ['vit, eager, batch 1: throughput 100 ± 2.0% before, 110 ± 2.0% now']
    """
    known = {tuple(row[key] for key in KEY): row for row in before}
    pairs = [(known[name], row) for row in after if (name := tuple(row[key] for key in KEY)) in known]
    if not pairs:
        raise ValueError("the two runs have no row in common: the same model, mode, batch and dtype")
    return [
        f"{b['model']}, {b['mode']}, batch {b['batch']}: {figure} {a[figure]:.4g} ± {a[spread]:.1%} before, "
        f"{b[figure]:.4g} ± {b[spread]:.1%} now"
        for a, b in pairs
        for figure, spread in FIGURES.items()
        if spread in a and spread in b and abs(a[figure] - b[figure]) > a[spread] * a[figure] + b[spread] * b[figure]
    ]
