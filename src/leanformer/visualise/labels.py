"""Names beside points: short ones, each where it covers neither a point nor another name."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure as Plot
from matplotlib.transforms import Bbox

PLACES = ((7, 0, "left"), (-7, 0, "right"), (0, 10, "center"), (0, -10, "center"), (7, 9, "left"), (-7, 9, "right"),
          (7, -9, "left"), (-7, -9, "right"), (0, 20, "center"), (0, -20, "center"))  # fmt: skip
"""Where a name may stand: points to the right and up, and which side of the text is there; the best first."""
RADIUS = 5
"""Points around the middle of a marker that stay free."""


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Each name → a shorter one: what all share with the plain model among them is told once.

    >>> short_names(["deit_small", "deit_small evit:keep_rate=0.7"])
    {'deit_small': 'deit_small', 'deit_small evit:keep_rate=0.7': '+ evit:keep_rate=0.7'}
    """
    plain = min(names, key=len, default="") + " "
    return {name: f"+ {name.removeprefix(plain)}" if name.startswith(plain) else name for name in names}


def place_names(plot: Plot, axis: Any, names: Mapping[tuple[float, float], str], others: Sequence[Any] = ()) -> None:
    """Write names at points (x, y) of `axis`, each where it covers least; points of `others` stay free too.

    >>> place_names(plot, axis, {(1.0, 2.0): "a model"})  # doctest: +SKIP
    """
    plot.draw_without_rendering()  # settles the layout, on which the places depend
    dots = axis.transData.transform([*names, *others])  # (n, 2) pixels
    radius = RADIUS * plot.dpi / 72
    taken = [Bbox([dot - radius, dot + radius]) for dot in dots]
    inside = axis.get_window_extent()
    for point, name in names.items():
        best, least = None, float("inf")
        for right, up, side in PLACES:
            text = axis.annotate(name, point, (right, up), textcoords="offset points", ha=side, va="center", fontsize=8)
            box = text.get_window_extent()
            covered = sum(_common(box, other) for other in taken) + _area(box) - _common(box, inside)
            text.remove()
            if covered < least - 1:
                best, least = (right, up, side, box), covered
        assert best is not None
        right, up, side, box = best
        axis.annotate(name, point, (right, up), textcoords="offset points", ha=side, va="center", fontsize=8)
        taken.append(box)


def _area(box: Bbox) -> float:
    return box.width * box.height


def _common(a: Bbox, b: Bbox) -> float:
    shared = Bbox.intersection(a, b)
    return 0.0 if shared is None else _area(shared)
