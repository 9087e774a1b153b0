"""Curves of a training run, from the lines of its log."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .figure import COLOURS, LINES, Figure, charts

SMOOTHED = 200
"""With more points than that, a curve is drawn as means of neighbours."""


def curve(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], title: str, x: str = "update") -> Figure:
    """One or more logged quantities over the updates of a run.

    >>> rows = [{"update": 1, "loss": 2.0}, {"update": 2, "loss": 1.0}]
    >>> curve(rows, ["loss"], "loss").summary
    'loss over 2 updates. loss: from 2 to 1, lowest 1, highest 2'
    """
    plot, (axis,) = charts(1, 4.4, 2.7)
    told = []
    for index, key in enumerate(keys):
        points = _points(rows, key, x)
        if not points:
            raise ValueError(f"no line of the log has '{key}'")
        values = [value for _, value in points]
        shown = thinned(points)
        style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index % len(LINES)]}
        name, dots = key.replace("_", " "), "o" if len(shown) < 12 else None
        axis.plot(*zip(*shown), label=name, marker=dots, markersize=4, **style)
        ends = f"from {values[0]:.4g} to {values[-1]:.4g}"
        told.append(f"{name}: {ends}, lowest {min(values):.4g}, highest {max(values):.4g}")
    axis.set(title=title, xlabel=x)
    axis.grid(alpha=0.25)
    if len(keys) > 1:
        axis.legend(frameon=False, fontsize=8)
    return Figure(plot, f"{title} over {max(row[x] for row in rows)} {x}s. {'; '.join(told)}")


def curves(entries: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """All the curves that a log of updates and epochs has something for: losses, accuracy, schedules, speed.

    A quantity that was logged once only is no curve and is left out.

    >>> lines = [{"kind": "step", "update": i, "loss": 2.0, "learning_rate": 0.1} for i in (1, 2)]
    >>> [figure.summary[:10] for figure in curves(lines)], curves(lines[:1])
    (['training l', 'learning r'], [])
    """
    steps, epochs = ([e for e in entries if e.get("kind") == kind] for kind in ("step", "epoch"))
    figures = []
    for rows, groups in ((epochs, _epoch_groups(epochs)), (steps, _step_groups(steps))):
        for title, keys in groups.items():
            drawn = [key for key in keys if len(_points(rows, key)) > 1]
            figures += [curve(rows, drawn, title)] if drawn else []
    return figures


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points as they are, or as means of neighbours where there are too many to see.

    >>> len(thinned([(float(i), 1.0) for i in range(1000)]))
    200
    """
    if len(points) <= SMOOTHED:
        return points
    bounds = [i * len(points) // SMOOTHED for i in range(SMOOTHED + 1)]
    return [
        (points[stop - 1][0], statistics.fmean(value for _, value in points[start:stop]))
        for start, stop in itertools.pairwise(bounds)
    ]


def _points(rows: Sequence[Mapping[str, Any]], key: str, x: str = "update") -> list[tuple[float, float]]:
    """What was logged of a quantity, without what is not a finite number."""
    found = ((row[x], row.get(key)) for row in rows)
    return [(at, value) for at, value in found if isinstance(value, int | float) and math.isfinite(value)]


def _keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    numbers = (key for row in rows for key, value in row.items() if isinstance(value, int | float))
    return [key for key in dict.fromkeys(numbers) if key not in ("update", "epoch")]


def _epoch_groups(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    keys = _keys(rows)
    return {
        "accuracy (%)": [key for key in keys if key.endswith(("top1", "top5"))],
        "validation loss": [key for key in keys if key.endswith("loss")],
    }


def _step_groups(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The loss and its terms are logged before the learning rate, what methods schedule after it."""
    keys = _keys(rows)
    at = keys.index("learning_rate") if "learning_rate" in keys else len(keys)
    schedules = [key for key in keys[at + 1 :] if key != "images_per_second"]
    return {
        "training loss": keys[:at],
        "learning rate": keys[at : at + 1],
        **{key.replace("_", " "): [key] for key in schedules},
        "images a second": [key for key in keys if key == "images_per_second"],
    }
