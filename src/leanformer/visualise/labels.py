"""Names beside points: short ones, each where it covers neither a point nor another name."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure as Plot
from matplotlib.transforms import Bbox

Place = tuple[float, float, str]
NEAR: tuple[Place, ...] = (
    (7, 0, "left"), (-7, 0, "right"), (0, 10, "center"), (0, -10, "center"), (7, 9, "left"), (-7, 9, "right"),
    (7, -9, "left"), (-7, -9, "right"),
)  # fmt: skip
ASIDE = ((0, "center"), (8, "left"), (-8, "right"), (0, "left"), (0, "right"), (26, "left"), (-26, "right"))
FAR: tuple[Place, ...] = tuple(
    (right, up, side) for up in (17, -17, 26, -26, 38, -38, 52, -52) for right, side in ASIDE
)
PLACES = (*NEAR, *FAR)
"""Where a name may stand: points to the right and up, and which side of the text is there; the best first. From the
far ones a thin line leads to the point."""
LONGEST = 34
"""Letters of a name in a plot; the middle of longer ones is left out."""
RADIUS = 5
"""Points around the middle of a marker that stay free."""


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Each name → a shorter one: what all share with the plain model among them is told once.

    >>> short_names(["deit_small", "deit_small token_mixer"])
    {'deit_small': 'deit_small', 'deit_small token_mixer': '+ token_mixer'}
    """
    plain = min(names, key=len, default="") + " "
    return {name: f"+ {name.removeprefix(plain)}" if name.startswith(plain) else name for name in names}


def shortened(name: str, most: int = LONGEST) -> str:
    """A name of at most so many letters: the middle of a longer one is left out.

    >>> shortened("vit_tiny_patch16_224.augreg", 11)
    'vit_t…ugreg'
    """
    return name if len(name) <= most else f"{name[: most // 2]}…{name[len(name) - (most - 1 - most // 2) :]}"


def place_names(plot: Plot, axis: Any, names: Mapping[tuple[float, float], str], others: Sequence[Any] = ()) -> int:
    """Write names at points (x, y) of `axis`, each where it covers neither a point nor another name.

    A name for which no such place is left within the axes is not written. The first names have the first choice.

    Args:
        plot: The figure.
        axis: Its axes, with all points drawn.
        names: Point → name.
        others: Points without a name that stay free too.

    Returns:
        How many names were written.

    >>> place_names(plot, axis, {(1.0, 2.0): "a model"})  # doctest: +SKIP
    1
    """
    plot.draw_without_rendering()  # settles the layout, on which the places depend
    dots = axis.transData.transform([*names, *others])  # (n, 2) pixels
    radius, inside = RADIUS * plot.dpi / 72, axis.get_window_extent()
    taken = [Bbox([dot - radius, dot + radius]) for dot in dots]
    for dot, (point, name) in zip(dots, names.items()):
        words = axis.annotate(shortened(name), point, fontsize=8)
        size = words.get_window_extent()
        words.remove()
        for place in PLACES:
            box = _box(dot, size, place, plot.dpi / 72)
            if _common(box, inside) > _area(box) - 1 and not any(_common(box, other) > 0 for other in taken):
                _write(axis, point, shortened(name), place)
                taken.append(box)
                break
    return len(taken) - len(dots)


def _box(dot: Any, size: Bbox, place: Place, scale: float) -> Bbox:
    """What words of a size cover, in pixels, at a place beside a dot."""
    right, up, side = place
    x, y = dot[0] + right * scale, dot[1] + up * scale
    x -= {"left": 0.0, "center": size.width / 2, "right": size.width}[side]
    return Bbox.from_bounds(x, y - size.height / 2, size.width, size.height)


def _write(axis: Any, point: tuple[float, float], name: str, place: Place) -> None:
    right, up, side = place
    line = {"arrowstyle": "-", "color": "#888888", "linewidth": 0.6, "shrinkB": 3} if place in FAR else None
    axis.annotate(
        name, point, (right, up), textcoords="offset points", ha=side, va="center", fontsize=8, arrowprops=line
    )


def _area(box: Bbox) -> float:
    return box.width * box.height


def _common(a: Bbox, b: Bbox) -> float:
    shared = Bbox.intersection(a, b)
    return 0.0 if shared is None else _area(shared)
