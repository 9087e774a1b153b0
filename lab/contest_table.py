"""Contests as a table: whose gain it is, with the spread of each ratio."""

from collections.abc import Sequence

from rich.table import Table

from .contest_result import FP8, OPTIMISED, TORCH, TORCHAO, Contest
from .tables import as_table, number


def contest_table(contests: Sequence[Contest]) -> Table:
    """One line a contest: timm's fastest form, the optimised backbone, the optimised lean model, and the ratios.

    Args:
        contests: the rows, of one runtime or several.

    >>> contest_table([]).row_count
    0
    """
    several = any(contest.runtime != TORCH for contest in contests)
    lines = [
        {
            "model": contest.label, "runtime": contest.runtime if several else "", "batch": str(contest.batch),
            "px": str(contest.size), **_figures(contest),
        }
        for contest in contests
    ]  # fmt: skip
    return as_table("images a second, all forms in one run", lines, left=("model", "runtime"))


def _figures(contest: Contest) -> dict[str, str]:
    if contest.failed:
        return {"timm's best": "failed"}
    form = OPTIMISED if contest.runtime == TORCH else contest.runtime
    lean = contest.forms.get(form) or max(rate for f, rate in contest.forms.items() if f.startswith("compiled"))
    rounded = contest.fp8_over_timm is not None
    torchaos = max((rate for f, rate in contest.forms.items() if f.startswith(TORCHAO)), default=None)
    return {
        "timm's best": f"{contest.fastest_of_timm:,.0f}",
        "backbone optimised": number(contest.forms.get(f"backbone {form}"), ",.0f"),
        "lean optimised": f"{lean:,.0f}",
        "over timm": number(contest.over_timm, ".2f"),
        "±": number(contest.over_timm_spread, ".1%"),
        "over own": number(contest.over_own, ".2f"),
        "± ": number(contest.over_own_spread, ".1%"),
        "MAC ratio": number(contest.mac_ratio, ".2f"),
        "share": number(contest.share, ".2f"),
        "with fp8": number(contest.fp8_over_timm, ".2f"),
        "its error": number(contest.errors.get(FP8), ".1e") if rounded else "",
        "with torchao's": number(torchaos and torchaos / contest.fastest_of_timm, ".2f"),
    }
