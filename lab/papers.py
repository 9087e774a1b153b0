"""python -m lab papers: one page of every table and figure of the five papers, the commands, and our own numbers."""

import fnmatch
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leanformer.core import write_atomically
from leanformer.measure import read_results

from .paper_index import PAPERS, Item
from .results_page import markdown

INTRO = """# Every table and figure of the five papers

Written by `python -m lab papers`; not edited by hand. Each has the command that runs it, with `DATA`, `WEIGHTS`,
`PHOTO`, `MODEL` and `RUN` for what is yours, and our own numbers where `results/` has some. Our runs are of other sizes
than the papers': what was trained, on what and for how long stands in each result file and in
[studies.md](studies.md). `teacher` is the top-1 of the model that a student was made from or learnt from, `paper` the
paper's top-1 of that row on ImageNet. Speed-ups are those of the optimised model over the fastest compiled form of what
it was made from; in `suite_*` over that of timm's model, in `study_dino` over the ViT, optimised as well. `ms` is a
picture's time on the machine that the file names. One recipe a kind is named; `leanformer recipes` lists all."""
MOST = 12
"""Rows of ours that are shown for a table."""
FIGURES = {"top-1, %", "k-NN, %", "linear, %", "AP", "mask AP", "mIoU", "speed-up", "ms"}
"""Columns without one of which a table says nothing."""
NAMES = ("student", "model", "label")
"""What the rows of a result call themselves, by the kind of result."""


def papers(page: Path = Path("docs/papers.md"), folder: Path = Path("results")) -> None:
    """Write the page of all tables and figures, with commands and our own numbers.

    Example: python -m lab papers --page docs/papers.md

    Args:
        page: The Markdown file to write.
        folder: The folder of the result files.
    """
    text = page_text({result["file"]: result for result in read_results(folder)})
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {page}: {error.strerror}") from error
    print(f"wrote {write_atomically(page, lambda name: Path(name).write_text(text, encoding='utf-8'))}")


def page_text(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page.

    Args:
        results: results by the names of their files.
    """
    parts = [INTRO]
    for paper, items in PAPERS.items():
        parts.append(f"## {paper}")
        for item in items:
            parts += [f"### {item.number}: {item.shows}", *_told(item, results)]
    return "\n\n".join(parts) + "\n"


def _told(item: Item, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    parts = ["\n".join(f"    {command}" for command in item.commands)] if item.commands else []
    parts += [f"{item.remark[0].upper()}{item.remark[1:]}."] if item.remark else []
    for file, only in item.ours:
        rows = ours(results[file], only) if file in results else []
        if rows and not rows[0].keys() & FIGURES:
            parts.append(f"Ours are in `results/{file}`, by parts of the models.")
        elif rows:
            parts.append(f"Ours, `results/{file}`:")
            parts.append(markdown(list(rows[0]), [list(row.values()) for row in rows[:MOST]]))
            parts += [f"and {len(rows) - MOST} more."] if len(rows) > MOST else []
    return parts


def ours(result: Mapping[str, Any], only: str) -> list[dict[str, str]]:
    """The rows of a result whose names begin with one of the texts in `only`: seeds together, what each got.

    Args:
        result: a result file's content.
        only: beginnings that are parted by |, in which * stands for anything.

    >>> ours({"rows": [{"model": "EViT 0.7", "top1": 79.5}, {"model": "RePa", "top1": 70.0}]}, "EViT")
    [{'row': 'EViT 0.7', 'top-1, %': '79.5'}]
    """
    texts, grouped = only.split("|"), {}
    for row in result.get("rows") or []:
        name = next((str(row[key]) for key in NAMES if key in row), "")
        if any(fnmatch.fnmatchcase(name, f"{text}*") for text in texts):
            grouped.setdefault((name, _epochs(row), row.get("learning_rate"), row.get("batch")), []).append(row)
    lines = [_line(name, rows) for (name, *_), rows in grouped.items()]
    columns = [column for column in (lines[0] if lines else ()) if any(line[column] for line in lines)]
    return [{column: line[column] for column in columns} for line in lines]


def _epochs(row: Mapping[str, Any]) -> str:
    """Those of the training, or after how many of them a row was judged."""
    return next((str(row[key]) for key in ("epochs", "epoch") if row.get(key) is not None), "")


def _judged(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row says of quality, by the columns of the page."""
    dense = row.get("figures") or {}
    return {
        "top-1, %": row.get("top1"), "k-NN, %": row.get("knn"), "linear, %": row.get("linear"), "AP": dense.get("ap"),
        "mask AP": dense.get("mask_ap"), "mIoU": dense.get("miou"),
    }  # fmt: skip


def _mean(values: Sequence[Any]) -> str:
    """The mean over seeds with the range, nothing where a row has no such number."""
    numbers = [value for value in values if isinstance(value, int | float)]
    spread = f" ({min(numbers):.1f} to {max(numbers):.1f})" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.1f}{spread}" if numbers else ""


def _line(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    first, judged = rows[0], [_judged(row) for row in rows]
    teachers = [row["teacher_top1"] for row in rows if row.get("teacher_top1")]
    speedup, times = first.get("speedup"), first.get("milliseconds")
    fastest = speedup.get("optimised", speedup.get("eager")) if isinstance(speedup, Mapping) else speedup
    return {
        "row": name,
        "epochs": _epochs(first),
        "rate": f"{first['learning_rate']:g}" if first.get("learning_rate") else "",
        "seeds": str(len(rows)) if len(rows) > 1 else "",
        **{column: _mean([each[column] for each in judged]) for column in judged[0]},
        "teacher": f"{statistics.mean(teachers):.1f}" if teachers else "",
        "paper": f"{first['paper_top1']:g}" if first.get("paper_top1") else "",
        "speed-up": f"{fastest:.2f}" if isinstance(fastest, int | float) else "",
        "ms": f"{min(times.values()):.0f}" if isinstance(times, Mapping) else "",
        "batch": str(first.get("batch") or ""),
    }
