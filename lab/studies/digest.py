"""The rows of a study as people read them: one line a student, mean and range over its seeds; and as points to draw."""

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from ..contest_result import is_timms
from ..tables import as_table

COMMAND = "command"


def digest(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """One line a student and schedule, column → text: mean and range over seeds, the fused model's cost, the command.

    >>> digest([])
    []
    """
    lines = []
    for mine in by_schedule(rows):
        top1, average = [row["top1"] for row in mine], [row["ema_top1"] for row in mine]
        speed = mine[0].get("speedup", {})
        lines.append({
            "student": mine[0]["student"],
            "seeds": str(len(mine)),
            "epochs": str(mine[0]["epochs"]),
            "rate": "" if mine[0].get("learning_rate") is None else f"{mine[0]['learning_rate']:g}",
            "before": f"{statistics.mean(row['before'] for row in mine):.1f}",
            "top-1": f"{statistics.mean(top1):.2f}",
            "range": f"{min(top1):.2f}-{max(top1):.2f}" if len(mine) > 1 else "",
            "EMA": "" if None in average else f"{statistics.mean(average):.2f}",
            "teacher": f"{statistics.mean(row['teacher_top1'] for row in mine):.2f}",
            "paper": "" if mine[0]["paper_top1"] is None else f"{mine[0]['paper_top1']:.2f}",
            "MACs G": f"{mine[0]['macs'] / 1e9:.3f}",
            "params M": f"{mine[0]['parameters'] / 1e6:.2f}",
            "speed-up": ", ".join(f"{form} {value:.2f}" for form, value in speed.items()),
            COMMAND: _command(mine),
        })  # fmt: skip
    return lines


def points(rows: Sequence[dict[str, Any]], teacher_macs: int | None = None) -> list[dict[str, Any]]:
    """The teacher, and each kind of student as it learnt best, as points for a figure.

    Once speeds have been measured, those that have one, with their throughput; before that all, with their MACs.

    >>> row = {"student": "EViT 0.7, labels", "kind": "EViT 0.7", "epochs": 3, "top1": 79.0, "ema_top1": None,
    ...        "macs": 8, "teacher_top1": 81.0, "speedup": {"eager": 2.0}, "images_per_second": {"eager": 100}}
    >>> [(point["family"], point["throughput"], point["top1"]) for point in points([row])]
    [('teacher', 50.0, 81.0), ('EViT', 100, 79.0)]
    """
    known = [row for row in rows if "images_per_second" in row] or rows
    best: dict[str, dict[str, Any]] = {}
    for mine in by_schedule(known):
        first = mine[0]
        top1 = max(_mean(mine, "top1"), _mean(mine, "ema_top1"))
        point = {"model": first["kind"], "family": family(first["kind"]), "macs": first["macs"], "top1": top1}
        if "images_per_second" in first:
            point["throughput"] = max(_own_speeds(first))
        if first["kind"] not in best or best[first["kind"]]["top1"] < top1:
            best[first["kind"]] = point
    if not best:
        return []
    teacher = {"model": "teacher", "family": "teacher", "top1": statistics.mean(row["teacher_top1"] for row in known)}
    if "images_per_second" in known[0]:
        teacher["throughput"] = _teacher_speed(known[0])
    return [teacher | {"macs": teacher_macs}, *best.values()]


def losses(studies: Mapping[str, Sequence[dict[str, Any]]]) -> list[dict[str, str]]:
    """Points that each student loses to its teacher in several studies, for the schedules that all of them have.

    Where a student was trained at several rates, with the one that served it best.

    >>> row = {"student": "EViT 0.7, distilled", "epochs": 3, "top1": 79.7, "teacher_top1": 81.5}
    >>> losses({"ViT-Ti": [row], "ViT-S": [row | {"top1": 81.0}]})
    [{'student': 'EViT 0.7, distilled', 'epochs': '3', 'ViT-Ti': '1.80', 'ViT-S': '0.50'}]
    """
    lost: dict[tuple[str, int], dict[str, float]] = {}
    for study, rows in studies.items():
        for mine in by_schedule(rows):
            loss = _mean(mine, "teacher_top1") - _mean(mine, "top1")
            best = lost.setdefault((mine[0]["student"], mine[0]["epochs"]), {})
            best[study] = min(loss, best.get(study, loss))
    return [
        {"student": student, "epochs": str(epochs)} | {study: f"{mine[study]:.2f}" for study in studies}
        for (student, epochs), mine in lost.items()
        if len(mine) == len(studies)
    ]


def family(kind: str) -> str:
    """A kind of student without its numbers; what takes several methods is a combination.

    >>> family("EViT 0.7 without fusion"), family("RIFormer in 2 blocks"), family("RePa 0.5 + SiT late")
    ('EViT without fusion', 'RIFormer', 'combinations')
    >>> family("EViT 0.7 at 192 px"), family("ViT at 160 px")
    ('EViT, by resolution', 'ViT, by resolution')
    """
    if " + " in kind:
        return "combinations"
    kind = re.sub(r" at [0-9]+ px", ", by resolution", kind)
    return re.sub(r" (in )?[0-9.]+( blocks)?| early| late", "", kind)


def by_schedule(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows that differ in nothing but their seed, together."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["student"], row["epochs"], row.get("learning_rate")), []).append(row)
    return list(groups.values())


def _command(rows: Sequence[dict[str, Any]]) -> str:
    """The command that trains these seeds of one student."""
    first = rows[0]
    seeds = " ".join(str(row["seed"]) for row in sorted(rows, key=lambda row: row["seed"]))
    return str(first.get("command") or "").replace(f"--seeds {first['seed']} ", f"--seeds {seeds} ")


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float:
    values = [row[key] for row in rows]
    return float("-inf") if None in values else statistics.mean(values)


def _teacher_speed(row: dict[str, Any]) -> float:
    """The teacher's fastest form, before any optimize of ours, or what our speed-up is over."""
    own = [rate for form, rate in row["images_per_second"].items() if is_timms(form)]
    return max(own) if own else row["images_per_second"]["eager"] / row["speedup"]["eager"]


def _own_speeds(row: dict[str, Any]) -> list[float]:
    """Images a second of the student's own forms."""
    return [rate for form, rate in row["images_per_second"].items() if not form.startswith("backbone")]


def summary(name: str, rows: Sequence[dict[str, Any]]) -> Table:
    """The digest as a rich table.

    >>> summary("none", []).row_count
    0
    """
    lines = [{column: text for column, text in line.items() if column != COMMAND} for line in digest(rows)]
    return as_table(f"study {name}", lines)
