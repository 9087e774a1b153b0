"""What `lean` chose beside plans made by hand: predicted and measured speed, accuracy before and after distillation."""

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
        distilled: what the study of these plans wrote; None: speeds alone.
    """
    speeds = {row["model"]: row for row in read_rows(timed) if not row["model"].startswith("random")}
    trained = {row["model"]: row for row in read_rows(distilled)} if distilled is not None else {}
    console().print(table(speeds, trained), soft_wrap=True)


def table(speeds: dict[str, dict[str, Any]], trained: dict[str, dict[str, Any]]) -> str:
    """The plans as a table in Markdown; a plan that was not distilled has no accuracy.

    Args:
        speeds: plan, as "lean 2" or "fewer pixels, 2" → its predicted and measured speed.
        trained: plan → what the study found.
    """
    lines = [f"| {' | '.join(HEAD)} |", "| --- " * len(HEAD) + "|"]
    for name, told in speeds.items():
        row = trained.get(name)
        target = name.split(" ")[1].rstrip(",") if name.startswith("lean ") else name.rsplit(", ", 1)[1]
        cells = [name, f"{told['predicted_speedup']:.2f}x", f"{told['speedup']:.2f}x ± {100 * told['spread']:.0f}%"]
        cells += _accuracy(row, trained.get(f"lean {target}"))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _accuracy(row: dict[str, Any] | None, lean: dict[str, Any] | None) -> list[str]:
    if row is None:
        return [""] * 5
    more = "" if lean is None or row is lean else difference(answers(lean, "judge"), answers(row, "judge"))
    return [f"{row['before_judge_top1']:.1f}", f"{row['judge_top1']:.1f}", more,
            f"{row['before_judge_agreement']:.1f}", f"{row['judge_agreement']:.1f}"]  # fmt: skip
