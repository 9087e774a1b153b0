"""The rows of a study as people read them: one line a student, mean and range over its seeds."""

import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table


def digest(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """One line a student, column → text: mean and range over seeds, and what the fused model costs.

    >>> digest([])
    []
    """
    lines = []
    for student in dict.fromkeys(row["student"] for row in rows):
        mine = [row for row in rows if row["student"] == student]
        top1, average = [row["top1"] for row in mine], [row["ema_top1"] for row in mine]
        speed = mine[0].get("speedup", {})
        lines.append({
            "student": student,
            "seeds": str(len(mine)),
            "epochs": str(mine[0]["epochs"]),
            "before": f"{statistics.mean(row['before'] for row in mine):.1f}",
            "top-1": f"{statistics.mean(top1):.2f}",
            "range": f"{min(top1):.2f}-{max(top1):.2f}" if len(mine) > 1 else "",
            "EMA": "" if None in average else f"{statistics.mean(average):.2f}",
            "teacher": f"{statistics.mean(row['teacher_top1'] for row in mine):.2f}",
            "paper": "" if mine[0]["paper_top1"] is None else f"{mine[0]['paper_top1']:.2f}",
            "MACs G": f"{mine[0]['macs'] / 1e9:.3f}",
            "params M": f"{mine[0]['parameters'] / 1e6:.2f}",
            "speed-up": ", ".join(f"{form} {value:.2f}" for form, value in speed.items()),
        })  # fmt: skip
    return lines


def summary(name: str, rows: Sequence[dict[str, Any]]) -> Table:
    """The digest as a rich table, without the columns that nothing fills.

    >>> summary("none", []).row_count
    0
    """
    lines = digest(rows)
    table = Table(title=f"study {name}", title_justify="left")
    columns = [column for column in (lines[0] if lines else ()) if any(line[column] for line in lines)]
    for column in columns:
        table.add_column(column, justify="left" if column == "student" else "right")
    for line in lines:
        table.add_row(*(line[column] for column in columns))
    return table
