"""The README's figure: accuracy against measured speed, joined from the files of the study on photographs.

students   `python -m lab imagenet`: top-1 on photographs that nothing was chosen by, of one seed or several
times      `python -m lab imagenet-times` or `plans --step check`: speed over the optimised teacher
"""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from leanformer import visualise
from leanformer.measure import read_rows

from .seeds import over_seeds, times_as_fast
from .spread import interval, teacher_answers

TEACHER, LEAN, PIXELS = "as it is", "found by lean", "fewer pixels"


def trade_off(
    students: tuple[Path, ...] = (Path("results/lean_search_distilled_h200.json"),),
    times: Path = Path("results/study_imagenet_times_h200.json"),
    epochs: tuple[int, ...] = (4, 5),
    output: Path = Path("docs/accuracy_speed.svg"),
    folder: Path = Path("results"),
) -> None:
    """Draw the students of the study on photographs: top-1, the mean over seeds, against measured speed.

    Example: python -m lab trade-off --times results/study_imagenet_times_h200.json --output docs/accuracy_speed.svg

    Args:
        students: The result file of `python -m lab imagenet`, or several of one study with other seeds.
        times: A file of `python -m lab imagenet-times` or of `python -m lab plans --step check`.
        epochs: Students that were trained for one of these numbers of epochs are drawn.
        output: The file to write, .svg or .png.
        folder: Where the teacher's answers to the photographs are.
    """
    teacher = teacher_answers(folder)
    itself = {"model": "ViT-Ti", "kind": TEACHER, "speedup": 1.0, "top1": 100 * teacher.mean()}
    rows = joined(read_rows(times), [row for file in students for row in read_rows(file)], epochs)
    drawn = visualise.trade_off([itself, *rows], x="speedup", y="top1", by="kind")
    axis = drawn.plot.axes[0]
    for line in list(axis.lines):
        line.remove()  # between so few points a line would claim what nobody measured
    spreads = [interval(row["seeds"].right, teacher) for row in rows]
    for row, (low, high) in zip(rows, spreads, strict=True):
        axis.vlines(row["speedup"], itself["top1"] + low, itself["top1"] + high, colors="0.6", zorder=0)
    axis.set_ylim(bottom=itself["top1"] + min(low for low, _ in spreads) - 0.4)
    axis.set(xlabel=f"times as fast as the optimised ViT-Ti ({place_of(times)})", ylabel="top-1, %")
    print(f"wrote {drawn.save(output)}\n{drawn.summary}")


def joined(
    times: Iterable[Mapping[str, Any]], students: Iterable[dict[str, Any]], epochs: Collection[int]
) -> list[dict[str, Any]]:
    """The students that were timed, by lean or with fewer pixels: kind, speed-up, top-1 and what the seeds say.

    Args:
        times: Rows with speeds over the optimised teacher; of a model timed twice the first counts.
        students: Rows of a file of kind "study imagenet".
        epochs: Of the students that are taken; those with other settings than the study's own are not.

    >>> timed = [{"model": "fewer pixels, 2", "plan": {"size": [160, 160], "shares": {}}, "speedup": 1.8}]
    >>> student = {"model": "fewer pixels, 2", "epochs": 12, "judge_top1": 50.0, "judge_agreement": 80.0}
    >>> [(row["model"], row["speedup"], row["top1"]) for row in joined(timed, [student | {"judge_right": "a0"}], [12])]
    [('160 px', 1.8, 50.0)]
    """
    alike = [row for row in students if row["epochs"] in epochs and not row.get("variant")]
    speed: dict[str, tuple[str, float]] = {}  # name → the name in the figure, and the speed
    for row in times:
        short, plan = row["model"], row.get("plan")
        if plan and not plan["shares"]:
            short = f"{plan['size'][0]} px"
        elif "size" in row and short.startswith(PIXELS):
            short = f"{row['size']} px"
        for name in (row["model"], short):
            speed.setdefault(name, (short, times_as_fast(row)))
    return [
        {"model": speed[name][0], "kind": kind, "speedup": speed[name][1], "top1": each.mean, "seeds": each}
        for name, each in over_seeds(alike, "judge").items()
        if name in speed and (kind := _kind(name)) is not None
    ]


def _kind(name: str) -> str | None:
    """Which rows of the study are drawn: those that lean's first choice made, and fewer pixels."""
    if name.startswith(PIXELS) or name.endswith(" px"):
        return PIXELS
    return LEAN if name.startswith("lean ") and "," not in name else None


def place_of(times: Path) -> str:
    """Where the models of a result file were timed, in a few words."""
    found = json.loads(times.read_text())
    one = found if "batch" in found else found["rows"][0]
    hardware = found["hardware"]
    chip = hardware["gpu"].removeprefix("NVIDIA ") if "gpu" in hardware else f"{hardware['threads']} CPU cores"
    dtype = one["dtype"].removeprefix("torch.").replace("bfloat", "bf")
    return f"{chip}, {dtype}, batch {one['batch']}"
