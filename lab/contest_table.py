"""Contests as a table: whose gain it is, with the spread of each ratio."""

from collections.abc import Sequence

from rich.table import Table

from .contest import FP8, OPTIMISED, TORCH, Contest


def contest_table(contests: Sequence[Contest]) -> Table:
    """One line a contest: timm's fastest form, the optimised backbone, the optimised lean model, and the ratios.

    Args:
        contests: the rows, of one runtime or several.

    >>> contest_table([]).row_count
    0
    """
    columns = ["model", "batch", "px", "timm's best", "backbone optimised", "lean optimised", "over timm", "±"]
    columns += ["over own", "± ", "MAC ratio", "share"]
    several = any(contest.runtime != TORCH for contest in contests)
    rounded = any(contest.fp8_over_timm is not None for contest in contests)
    columns[1:1] = ["runtime"] if several else []
    columns += ["with fp8", "its error"] if rounded else []
    table = Table(title="images a second, all forms in one run", title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in ("model", "runtime") else "right")
    for contest in contests:
        table.add_row(
            contest.label,
            *([contest.runtime] if several else []),
            *_figures(contest),
            *(_fp8(contest) if rounded else []),
        )
    return table


def _figures(contest: Contest) -> list[str]:
    if contest.failed:
        return [str(contest.batch), str(contest.size), "failed"]
    form = OPTIMISED if contest.runtime == TORCH else contest.runtime
    lean = contest.forms.get(form) or max(rate for f, rate in contest.forms.items() if f.startswith("compiled"))
    return [
        str(contest.batch), str(contest.size), f"{contest.fastest_of_timm:,.0f}",
        _number(contest.forms.get(f"backbone {form}"), ",.0f"), f"{lean:,.0f}",
        _number(contest.over_timm, ".2f"), _number(contest.over_timm_spread, ".1%"),
        _number(contest.over_own, ".2f"), _number(contest.over_own_spread, ".1%"),
        _number(contest.mac_ratio, ".2f"), _number(contest.share, ".2f"),
    ]  # fmt: skip


def _fp8(contest: Contest) -> list[str]:
    return [_number(contest.fp8_over_timm, ".2f"), _number(contest.errors.get(FP8), ".1e")]


def _number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)
