"""A figure and its words: what every function of `visualise` returns.

Colours are Okabe and Ito's for kinds and viridis for amounts, which people with any colour vision can tell apart;
lines differ in style and marker too.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure as Plot

from ..core import write_atomically

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
AMOUNTS = "viridis"
FORMATS = (".png", ".svg")
DPI = 150
LOOK: Any = {
    "svg.fonttype": "none",  # text stays text, for search and for screen readers
    "svg.hashsalt": "leanformer",
}


@dataclass(frozen=True)
class Figure:
    """A matplotlib figure, `plot`, with a `summary` that says in words what it shows.

    >>> figure = Figure(canvas(2, 2), "an empty square")
    >>> figure.summary
    'an empty square'
    """

    plot: Plot
    summary: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure as PNG or SVG, by the ending of the name, with the summary in the file's metadata.

        >>> Figure(canvas(2, 2), "an empty square").save("square.png")  # doctest: +SKIP
        """
        path = Path(path)
        kind = path.suffix.lower()
        if kind not in FORMATS:
            raise ValueError(f"cannot write '{path.name}': a figure's name ends in {' or '.join(FORMATS)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror}") from error
        about: dict[str, Any] = {"Description": self.summary}
        if kind == ".svg":
            about["Date"] = None  # the same figure is the same file

        def write(name: str) -> None:
            with matplotlib.rc_context(LOOK):
                self.plot.savefig(name, format=kind[1:], dpi=DPI, metadata=about)

        return write_atomically(path, write)

    def __str__(self) -> str:
        return self.summary


def canvas(width: float, height: float) -> Plot:
    """An empty figure of so many inches, outside of pyplot: nothing is shown, nothing has to be closed."""
    return Plot(figsize=(width, height), layout="constrained")


def charts(columns: int, width: float, height: float) -> tuple[Plot, Any]:
    """A figure of so many inches with charts side by side, and its axes (columns,)."""
    plot = canvas(width, height)
    axes = plot.subplots(1, columns, squeeze=False)[0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.title.set_fontsize(10)
    return plot, axes


def panels(rows: int, columns: int, size: float = 1.9, wider: float = 0.0, higher: float = 0.35) -> tuple[Plot, Any]:
    """A figure with rows x columns square panels without ticks, `size` inches each, and its axes (rows, columns)."""
    plot = canvas(columns * size + wider, rows * size + higher)
    axes = plot.subplots(rows, columns, squeeze=False)
    for each in axes.flat:
        each.set(xticks=[], yticks=[])
        each.spines[:].set_visible(False)
        each.title.set_fontsize(10)
    return plot, axes
