"""Plans beside each other on labelled photographs: top-1, agreement, and differences image by image."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanformer.core import fold
from leanformer.data import Arrays
from leanformer.measure import console, count, record, write_result
from leanformer.search.judge import Judge
from leanformer.search.plan import Plan

from .photographs import answers_of, photographs


def judge_plans(folder: Path, judge: Judge, photos: str, images: int, output: Path) -> None:
    """Each target's plan and those made by hand on labelled photographs, without training, with paired differences.

    What was judged is kept in the folder, so that a call that was stopped goes on.

    Args:
        folder: what the search left, and where answers are kept.
        judge: makes the plans' models.
        photos: labelled photographs.
        images: how many of them.
        output: the result file.
    """
    part = photographs(photos)["judge"]
    part = type(part)(part.images[:images], part.labels[:images], part.classes, name=part.name)
    teacher = answers_of(judge.teacher, part).argmax(1)
    rows: list[dict[str, Any]] = [{"model": "ViT-Ti", "macs": count(judge.teacher).macs, "photos": len(part),
                                   "top1": _percent(teacher == part.labels)}]  # fmt: skip
    for path in sorted(folder.glob("lean *.json")):
        found = json.loads(path.read_text())
        plans = {"lean": found["best"][0], **found["hand"]}
        answers = {name: _answered(folder, judge, Plan.from_json(told["plan"]), part) for name, told in plans.items()}
        for name, told in plans.items():
            rows.append({"target": found["target"], "model": name, **told,
                         "macs": answers[name]["macs"], **_beside(answers, name, part.labels, teacher)})  # fmt: skip
    write_result(record("lean plans without training", rows, judge.device), output)
    console().print(table(rows))


def _answered(folder: Path, judge: Judge, plan: Plan, part: Arrays) -> dict[str, Any]:
    """First answers of a plan's model to the photographs, and its MACs; read where the folder has them."""
    path = folder / "answers.json"
    known = json.loads(path.read_text()) if path.is_file() else {}
    key = f"{len(part)} {plan.to_json()}"
    if key not in known:
        model = judge.model(plan).eval()
        macs = count(fold(plan.build(judge.teacher))).macs
        known[key] = {"macs": macs, "answers": answers_of(model, part).argmax(1).tolist()}
        path.write_text(json.dumps(known))
        console().print(f"judged {plan}", highlight=False)
    return known[key]


def _beside(answers: dict[str, dict[str, Any]], name: str, labels: Tensor, teacher: Tensor) -> dict[str, Any]:
    """Top-1 and agreement in per cent, what lean has more of each, and the standard errors of these differences."""
    mine, leans = (torch.tensor(answers[each]["answers"]) for each in (name, "lean"))
    found: dict[str, Any] = {}
    for key, goal in (("top1", labels), ("agreement", teacher)):
        more = (leans == goal).float() - (mine == goal).float()
        found |= {f"photos_{key}": _percent(mine == goal), f"lean_more_{key}": 100 * more.mean().item(),
                  f"error_{key}": 100 * more.std().item() / len(more) ** 0.5}  # fmt: skip
    return found


def _percent(right: Tensor) -> float:
    return 100 * right.float().mean().item()


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    lines = ["| target | plan | GMACs | top-1, % | lean's more | agreement, % | lean's more |", "| --- " * 7 + "|"]
    for row in rows[1:]:
        more = [f"{row[f'lean_more_{key}']:+.1f} ± {row[f'error_{key}']:.1f}" for key in ("top1", "agreement")]
        more = ["", ""] if row["model"] == "lean" else more
        lines.append(f"| {row['target']} | {row['model']} | {row['macs'] / 1e9:.3f} | {row['photos_top1']:.1f} | "
                     f"{more[0]} | {row['photos_agreement']:.1f} | {more[1]} |")  # fmt: skip
    return "\n".join(lines)
