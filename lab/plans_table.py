"""What `lean` chose beside plans made by hand: predicted and measured speed, accuracy before and after distillation.

Of the families that a search found for a target, lean's is the one that agrees most with the teacher after training on
the photographs for choosing: so `lean` itself tries families. All are compared on the photographs for judging.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leanformer.measure import console, read_rows

from .spread import answers, difference

HEAD = (
    "plan",
    "predicted",
    "measured",
    "top-1 before, %",
    "after, %",
    "lean's more",
    "agreement before, %",
    "after, %",
)


def plans_table(timed: Path, distilled: Path | None) -> None:
    """Print the plans of a search as a table in Markdown, target by target.

    Args:
        timed: what the step check wrote.
        distilled: what the study of these plans wrote, of which the first seed is taken; None: speeds alone.
    """
    speeds = {row["model"]: row for row in read_rows(timed) if not row["model"].startswith("random")}
    rows = sorted(read_rows(distilled), key=lambda row: -row["seed"]) if distilled is not None else []
    trained = {row["model"]: row for row in rows}
    console().print(table(speeds, trained), soft_wrap=True)


def table(speeds: dict[str, dict[str, Any]], trained: dict[str, dict[str, Any]]) -> str:
    """The plans as a table in Markdown; a plan that was not distilled has no accuracy.

    Args:
        speeds: plan, as "lean 2" or "fewer pixels, 2" → its predicted and measured speed.
        trained: plan → what the study found.
    """
    lines = [f"| {' | '.join(HEAD)} |", "| --- " * len(HEAD) + "|"]
    leans = lean_by_target(trained)
    for name, told in speeds.items():
        row, lean = trained.get(name), leans.get(target_of(name))
        label = f"**{name}**" if row is not None and row is lean else name
        cells = [label, f"{told['predicted_speedup']:.2f}x", f"{told['speedup']:.2f}x ± {100 * told['spread']:.0f}%"]
        cells += _accuracy(row, lean)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def target_of(name: str) -> str:
    """The speed that a plan was asked for.

    >>> target_of("lean 2, tome + fewer pixels"), target_of("EViT in blocks 3, 6, 9, 1.5")
    ('2', '1.5')
    """
    return name.split(" ")[1].rstrip(",") if name.startswith("lean ") else name.rsplit(", ", 1)[1]


def lean_by_target(trained: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Speed asked for → the row of the family that lean takes.

    Args:
        trained: plan → what the study found.

    >>> rows = {"lean 2": {"choose_agreement": 80.0}, "lean 2, tome": {"choose_agreement": 82.0}}
    >>> lean_by_target(rows)["2"]["choose_agreement"]
    82.0
    """
    found: dict[str, dict[str, Any]] = {}
    for name, row in trained.items():
        if name.startswith("lean "):
            target = target_of(name)
            best = found.setdefault(target, row)
            found[target] = max(best, row, key=lambda each: each.get("choose_agreement", 0.0))
    return found


def _accuracy(row: dict[str, Any] | None, lean: dict[str, Any] | None) -> list[str]:
    if row is None:
        return [""] * 5
    before = [f"{row[f'before_judge_{key}']:.1f}" for key in ("top1", "agreement")]
    if not row["epochs"]:
        return [before[0], "not trained", "", before[1], ""]
    more = "" if lean is None or row is lean else difference(answers(lean, "judge"), answers(row, "judge"))
    return [before[0], f"{row['judge_top1']:.1f}", more, before[1], f"{row['judge_agreement']:.1f}"]
