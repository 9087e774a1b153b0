"""The README's figure: accuracy against measured speed, joined from the files of the study on photographs.

results/lean_plans_h200.json      plan → speed-up over the optimised teacher
results/study_imagenet.json       student → top-1 on photographs that nothing was chosen by
results/teacher_photos_cpu.json   the teacher's top-1 on the same photographs
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from leanformer import visualise
from leanformer.measure import read_rows

from .spread import answers, interval, teacher_answers

EPOCHS = 12
"""Students are compared after as many."""
TEACHER, LEAN, PIXELS = "as it is", "found by lean", "fewer pixels"


def trade_off(output: Path = Path("docs/accuracy_speed.svg"), folder: Path = Path("results")) -> None:
    """Draw the students of the study on photographs: top-1 against measured speed.

    Example: python -m lab trade-off --output docs/accuracy_speed.svg

    Args:
        output: The file to write, .svg or .png.
        folder: The folder of the result files.
    """
    plans, students = (read_rows(folder / name) for name in ("lean_plans_h200.json", "study_imagenet.json"))
    teacher = teacher_answers(folder)
    itself = {"model": "ViT-Ti", "kind": TEACHER, "speedup": 1.0, "top1": 100 * teacher.mean()}
    rows = [row | {"interval": interval(answers(row, "judge"), teacher)} for row in joined(plans, students)]
    drawn = visualise.trade_off([itself, *rows], x="speedup", y="top1", by="kind")
    axis = drawn.plot.axes[0]
    for line in list(axis.lines):
        line.remove()  # between so few points a line would claim what nobody measured
    for row, low, high in ((row, *row["interval"]) for row in rows):
        axis.vlines(row["speedup"], itself["top1"] + low, itself["top1"] + high, colors="0.6", zorder=0)
    axis.set_ylim(bottom=itself["top1"] + min(row["interval"][0] for row in rows) - 0.4)
    axis.set(xlabel="times as fast as the optimised ViT-Ti (H200, bf16, batch 256)", ylabel="top-1, %")
    print(f"wrote {drawn.save(output)}\n{drawn.summary}")


def joined(plans: Iterable[Mapping[str, Any]], students: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The students whose plan was timed, with kind, speed-up and top-1; of a plan timed twice the first timing.

    Args:
        plans: Rows of a file of kind "lean plans".
        students: Rows of a file of kind "study imagenet".

    >>> plan = {"model": "random", "plan": {"size": [160, 160], "shares": {}}, "speedup": 1.8}
    >>> student = {"model": "160 px", "variant": "", "epochs": 12, "judge_top1": 67.1}
    >>> [(row["kind"], row["speedup"], row["top1"]) for row in joined([plan], [student])]
    [('fewer pixels', 1.8, 67.1)]
    """
    speed: dict[str, float] = {}
    for row in plans:
        size, shares = row["plan"]["size"], row["plan"]["shares"]
        speed.setdefault(row["model"] if shares else f"{size[0]} px", row["speedup"])
    return [
        {**row, "kind": PIXELS if row["model"].endswith(" px") else LEAN, "speedup": speed[row["model"]],
         "top1": row["judge_top1"]}
        for row in students
        if row["model"] in speed and row["epochs"] == EPOCHS and not row["variant"]
    ]  # fmt: skip
