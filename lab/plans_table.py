"""What `lean` chose beside plans made by hand: predicted and measured speed, accuracy before and after distillation.

A plan that was distilled with several seeds has their mean. Of the families that a search found for a target, lean's
is the one that agrees most with the teacher after training on the photographs for choosing: so `lean` itself tries
families. All are compared on the photographs for judging.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanformer.measure import console, read_rows

from .seeds import Seeds, over_seeds
from .spread import difference

HEAD = (
    "plan",
    "predicted",
    "measured",
    "seeds",
    "top-1 before, %",
    "after, %",
    "lean's more",
    "agreement before, %",
    "after, %",
)


@dataclass(frozen=True)
class Distilled:
    """A plan after distillation.

    Attributes:
        row: of its first seed, which says what it was before.
        seeds: what all seeds found.
    """

    row: dict[str, Any]
    seeds: Seeds


def plans_table(timed: Path, distilled: Path | None) -> None:
    """Print the plans of a search as a table in Markdown, target by target.

    Args:
        timed: what the step check wrote.
        distilled: what the study of these plans wrote; None: speeds alone.
    """
    speeds = {row["model"]: row for row in read_rows(timed) if not row["model"].startswith("random")}
    rows = read_rows(distilled) if distilled is not None else []
    console().print(table(speeds, together(rows)), soft_wrap=True)


def together(rows: list[dict[str, Any]]) -> dict[str, Distilled]:
    """Plan → what its seeds found together, and the row of the first one."""
    first = {row["model"]: row for row in sorted(rows, key=lambda row: -row["seed"])}
    seeds = over_seeds(rows, "judge")
    return {name: Distilled(row, seeds[name]) for name, row in first.items()}


def table(speeds: Mapping[str, dict[str, Any]], trained: Mapping[str, Distilled]) -> str:
    """The plans as a table in Markdown; a plan that was not distilled has no accuracy.

    Args:
        speeds: plan, as "lean 2" or "fewer pixels, 2" → its predicted and measured speed.
        trained: plan → what the study found.
    """
    lines = [f"| {' | '.join(HEAD)} |", "| --- " * len(HEAD) + "|"]
    leans = lean_by_target({name: each.row for name, each in trained.items()})
    for name, told in speeds.items():
        found, lean = trained.get(name), leans.get(target_of(name))
        label = f"**{name}**" if found is not None and name == lean else name
        cells = [label, f"{told['predicted_speedup']:.2f}x", f"{told['speedup']:.2f}x ± {100 * told['spread']:.0f}%"]
        cells += _accuracy(found, None if lean in (None, name) else trained[lean])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def target_of(name: str) -> str:
    """The speed that a plan was asked for.

    >>> target_of("lean 2, tome + fewer pixels"), target_of("EViT in blocks 3, 6, 9, 1.5")
    ('2', '1.5')
    """
    return name.split(" ")[1].rstrip(",") if name.startswith("lean ") else name.rsplit(", ", 1)[1]


def lean_by_target(trained: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Speed asked for → the family that lean takes.

    Args:
        trained: plan → the row of its first seed.

    >>> lean_by_target({"lean 2": {"choose_agreement": 80.0}, "lean 2, tome": {"choose_agreement": 82.0}})
    {'2': 'lean 2, tome'}
    """
    found: dict[str, str] = {}
    for name in trained:
        if name.startswith("lean "):
            best = found.setdefault(target_of(name), name)
            found[target_of(name)] = max(best, name, key=lambda each: trained[each].get("choose_agreement", 0.0))
    return found


def _accuracy(found: Distilled | None, lean: Distilled | None) -> list[str]:
    """Its cells behind the speeds; the lean plan is None where this is it."""
    if found is None:
        return [""] * 6
    row, seeds = found.row, found.seeds
    before = [f"{row[f'before_judge_{key}']:.1f}" for key in ("top1", "agreement")]
    if not row["epochs"]:
        return ["", before[0], "not trained", "", before[1], ""]
    more = "" if lean is None else difference(lean.seeds.right, seeds.right)
    return [str(len(seeds.top1)), before[0], f"{seeds.mean:.1f}", more, before[1], f"{seeds.agreement:.1f}"]
