"""The README's figure: accuracy against measured speed, joined from the two files of the study on photographs.

results/lean_plans_h200.json   plan → speed-up over the optimised teacher
results/study_imagenet.json    student → top-1 on photographs that nothing was chosen by
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from leanformer import visualise

EPOCHS = 12
"""Students are compared after as many."""
LEAN, PIXELS = "found by lean", "fewer pixels"


def trade_off(output: Path = Path("docs/accuracy_speed.svg"), folder: Path = Path("results")) -> None:
    """Draw the students of the study on photographs: top-1 against measured speed.

    Example: python -m lab trade-off --output docs/accuracy_speed.svg

    Args:
        output: The file to write, .svg or .png.
        folder: The folder of the result files.
    """
    plans, students = (_rows(folder / name) for name in ("lean_plans_h200.json", "study_imagenet.json"))
    drawn = visualise.trade_off(joined(plans, students), x="speedup", y="top1", by="kind")
    axis = drawn.plot.axes[0]
    for line in list(axis.lines):
        line.remove()  # between so few points a line would claim what nobody measured
    axis.set(xlabel="times as fast as the optimised ViT-Ti (H200, bf16, batch 256)", ylabel="top-1, %")
    print(f"wrote {drawn.save(output)}\n{drawn.summary}")


def joined(plans: Iterable[Mapping[str, Any]], students: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The students whose plan was timed, with their speed-up; of a plan timed twice the first timing.

    Args:
        plans: Rows of a file of kind "lean plans".
        students: Rows of a file of kind "study imagenet".

    >>> plan = {"model": "random", "plan": {"size": [160, 160], "shares": {}}, "speedup": 1.8}
    >>> student = {"model": "160 px", "variant": "", "epochs": 12, "judge_top1": 67.1}
    >>> joined([plan], [student])
    [{'model': '160 px', 'kind': 'fewer pixels', 'speedup': 1.8, 'top1': 67.1}]
    """
    speed: dict[str, float] = {}
    for row in plans:
        size, shares = row["plan"]["size"], row["plan"]["shares"]
        speed.setdefault(row["model"] if shares else f"{size[0]} px", row["speedup"])
    return [
        {
            "model": row["model"], "kind": PIXELS if row["model"].endswith(" px") else LEAN,
            "speedup": speed[row["model"]], "top1": row["judge_top1"],
        }
        for row in students
        if row["model"] in speed and row["epochs"] == EPOCHS and not row["variant"]
    ]  # fmt: skip


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is no result file: {error}") from error
