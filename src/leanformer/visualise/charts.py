"""Charts of measured figures: trade-offs, and latency by component. They take the rows of result files as they are."""

from collections.abc import Mapping, Sequence
from typing import Any

from .figure import COLOURS, LINES, MARKERS, Figure, charts
from .labels import place_names, short_names, shortened

LABELS = {
    "throughput": "images a second",
    "top1": "top-1 accuracy (%)",
    "macs": "G MACs an image",
    "parameters": "M parameters",
    "latency_p50": "median latency (ms)",
    "speedup": "speed-up",
    "agreement": "agreement with the teacher (%)",
}
PERCENT = ("top1", "agreement")
SCALES = {"macs": 1e-9, "parameters": 1e-6, "latency_p50": 1e3}
LABELLED = 14
"""With more points than that, only those that nothing beats are labelled, and none where a column names families."""


def trade_off(
    rows: Sequence[Mapping[str, Any]],
    x: str = "throughput",
    y: str | None = None,
    label: str = "model",
    by: str | None = None,
    names: bool = True,
) -> Figure:
    """Accuracy (or, where no row has one, MACs) against throughput, a point for each row.

    A line joins the rows that no other of the same kind beats in both figures.

    Args:
        rows: Those of a result file.
        x: The column of the horizontal axis.
        y: The column of the vertical one.
        label: The column with the names of the points.
        by: Rows of one value of this column share colour and marker; by default those of one mode, batch and dtype.
        names: Whether names are written beside the points; the summary has them anyway.

    >>> rows = [{"model": "a", "throughput": 100, "top1": 80.0}, {"model": "b", "throughput": 150, "top1": 79.0}]
    >>> print(trade_off(rows).summary)
    top-1 accuracy (%) against images a second; a * marks what nothing beats in both.
    a: 100 and 80 *
    b: 150 and 79 *
    """
    y = y or next((key for key in ("top1", "macs") if any(row.get(key) is not None for row in rows)), "top1")
    points = [row for row in rows if row.get(x) is not None and row.get(y) is not None]
    if not points:
        raise ValueError(
            f"no row has both '{x}' and '{y}'; the rows have: {', '.join(sorted({k for r in rows for k in r}))}"
        )
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in points:
        kinds.setdefault(_kind(row) if by is None else str(row[by]), []).append(row)
    plot, axis = _frame(points, x, y, list(kinds))
    lines = [f"{axis.get_ylabel()} against {axis.get_xlabel()}; a * marks what nothing beats in both."]
    short, few = short_names([str(row.get(label, "")) for row in points]), len(points) <= LABELLED
    best_named, named = {}, {}
    for index, (kind, members) in enumerate(kinds.items()):
        best = front(members, x, y)
        _points(axis, index, _xy(members, x, y), _xy(best, x, y))
        for row, *point in zip(members, *_xy(members, x, y)):
            good, name = any(row is each for each in best), str(row.get(label, ""))
            lines.append(f"{name}{f' ({kind})' if kind else ''}: {point[0]:.5g} and {point[1]:.5g}{' *' * good}")
            if names and (few or (good and by is None)):  # families are told by their colours: names would hide them
                (best_named if good else named)[tuple(point)] = short[name]
    if y in PERCENT:
        axis.set_ylim(top=min(axis.get_ylim()[1], max(101.0, *_xy(points, x, y)[1])))
    place_names(plot, axis, best_named | named, list(zip(*_xy(points, x, y))))
    return Figure(plot, "\n".join(lines))


def _frame(points: Sequence[Mapping[str, Any]], x: str, y: str, kinds: list[str]) -> tuple[Any, Any]:
    """An empty figure for points of these kinds, small enough to be read on a phone, and its axes."""
    columns = min(3, len(kinds), max(1, 60 // (4 + max(map(len, kinds)))))
    plot, (axis,) = charts(1, 5.4, 4.0 + 0.2 * (len(kinds) // columns))
    axis.set(xlabel=LABELS.get(x, x), ylabel=LABELS.get(y, y))
    axis.margins(x=0.15, y=0.12)
    axis.grid(alpha=0.25)
    if max(_xy(points, x, y)[0]) >= 1e4:
        axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1e3:g} k")
    for index, kind in enumerate(kinds):  # empty series, so that markers in the legend have one size
        axis.scatter([], [], s=46, label=kind or None, **_look(index))
    if any(kinds):
        plot.legend(loc="outside upper center", ncols=columns, frameon=False, fontsize=9)
    return plot, axis


def _look(index: int) -> dict[str, Any]:
    """Colour and marker of one kind; colours come round with other markers."""
    shift = index // len(COLOURS)
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[(index + shift) % len(MARKERS)]}


def _points(axis: Any, index: int, every: Sequence[list[float]], best: Sequence[list[float]]) -> None:
    """The points of one kind, with a line through the best."""
    look, many = _look(index), len(every[0]) > LABELLED
    size, alpha = (22, 0.6) if many else (46, 1.0)  # so that points that lie upon each other are seen
    axis.scatter(*every, s=size, zorder=3, alpha=alpha, **look)
    axis.plot(*best, color=look["color"], linestyle=LINES[index % len(LINES)], alpha=0.6)


def front(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> list[Mapping[str, Any]]:
    """The rows that no other beats in both figures, by rising x; less is better of MACs, parameters and latency.

    >>> front([{"x": 1, "top1": 2}, {"x": 2, "top1": 3}, {"x": 3, "top1": 1}], "x", "top1")
    [{'x': 2, 'top1': 3}, {'x': 3, 'top1': 1}]
    """
    sign = {key: -1 if key in SCALES else 1 for key in (x, y)}
    good = [
        row
        for row in rows
        if not any(
            all(sign[key] * other[key] >= sign[key] * row[key] for key in (x, y))
            and any(other[key] != row[key] for key in (x, y))
            for other in rows
        )
    ]
    return sorted(good, key=lambda row: row[x])


def latency_breakdown(profiles: Sequence[Mapping[str, Any]] | Mapping[str, Any], shares: bool = True) -> Figure:
    """Latency by component as stacked bars, one for each profile: as shares, or in milliseconds.

    A profile is a row of a result of kind "profile": `model`, `mode`, `batch`, `parts` (component → seconds) and
    `whole`, the seconds of the whole model. What the components do not add up to is "rest".

    >>> latency_breakdown({"model": "vit", "whole": 0.004, "parts": {"FFN": 0.002}}).summary.splitlines()[1]
    'vit: 4.00 ms; FFN 50%, rest 50%'
    """
    profiles = [profiles] if isinstance(profiles, Mapping) else list(profiles)
    if not profiles:
        raise ValueError("there is no profile to draw")
    filled = [_with_rest(profile) for profile in profiles]
    kinds = [*dict.fromkeys(kind for parts in filled for kind in parts if kind != "rest"), "rest"]
    plot, (axis,) = charts(
        1, 5.4, 1.3 + 0.62 * len(profiles)
    )  # names above the bars: there is no room beside on a phone
    colours = dict(zip(kinds, COLOURS)) | {"rest": "#BBBBBB"}
    lines = ["Latency by component."]
    for place, (profile, parts) in enumerate(zip(profiles, filled)):
        left, total = 0.0, sum(parts.values())
        for kind in kinds:
            seconds = parts.get(kind, 0.0)
            width = 100 * seconds / total if shares else seconds * 1e3
            label = None if place else kind
            axis.barh(place, width, 0.5, left=left, color=colours[kind], edgecolor="white", label=label)
            if seconds / total > 0.06:
                dark = colours[kind] in ("#0072B2", "#000000", "#D55E00", "#009E73")
                text = f"{seconds / total:.0%}"
                axis.text(left + width / 2, place, text, ha="center", va="center", color="white" if dark else "black")
            left += width
        told = ", ".join(f"{kind} {parts[kind] / total:.0%}" for kind in kinds if kind in parts)
        lines.append(f"{_title(profile)}: {profile['whole'] * 1e3:.2f} ms; {told}")
    for place, profile in enumerate(profiles):
        words = f"{shortened(_title(profile), 56)}: {profile['whole'] * 1e3:.2f} ms"
        axis.text(0, place - 0.28, words, ha="left", va="bottom", fontsize=9)
    axis.set(yticks=[], ylim=(len(profiles) - 0.6, -0.75))
    axis.spines["left"].set_visible(False)
    axis.margins(x=0)
    axis.set_xlabel("share of the latency (%)" if shares else "latency (ms)")
    plot.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return Figure(plot, "\n".join(lines))


def _with_rest(profile: Mapping[str, Any]) -> dict[str, float]:
    parts = {kind: seconds for kind, seconds in profile["parts"].items() if kind != "rest"}
    rest = profile["whole"] - sum(parts.values())
    return {**parts, "rest": max(rest, 0.0)}


def _title(profile: Mapping[str, Any]) -> str:
    more = ", ".join(filter(None, (profile.get("mode", ""), f"batch {profile['batch']}" if "batch" in profile else "")))
    return f"{profile['model']}{f' ({more})' if more else ''}"


def _kind(row: Mapping[str, Any]) -> str:
    parts = (row.get("mode"), f"batch {row['batch']}" if "batch" in row else None, row.get("dtype"))
    return ", ".join(part for part in parts if part)


def _xy(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> tuple[list[float], list[float]]:
    return [row[x] * SCALES.get(x, 1) for row in rows], [row[y] * SCALES.get(y, 1) for row in rows]
