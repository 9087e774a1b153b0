"""python -m lab dense-study: detectors on Oxford Pets and segmenters on CamVid, with lean backbones and without.

RetinaNet, Mask R-CNN    one pet a picture, official split; box and mask of the body from its trimap
Semantic FPN, UPerNet    street scenes, eleven classes, official train and test pictures
ViT-Ti starts from ImageNet, PoolFormer-S12 and Swin-T from scratch; all rows of a kind have one schedule

`studies/dense_rows.py` says which models there are, `dense_queue.py` how they are trained, `dense_speed.py` how timed.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table
from torch import Tensor
from torchvision.transforms.v2 import functional as V

from leanformer.measure import choose, console, read_rows, record, write_result

from .arguments import device_of
from .studies.dense_album import read_at_full_size
from .studies.dense_queue import Plan, work_off
from .studies.dense_rows import Builder, Row, Sizes, all_rows
from .studies.dense_speed import FORMS, Candidate, compile_models, time_models
from .studies.dense_timing import Conditions
from .studies.file_lock import read_row
from .tables import as_table, number

CAMVID_CLASSES, SCENE = 11, (3, 360, 480)


def dense_study(
    pets: Path | None = None,
    camvid: Path | None = None,
    checkpoint: Path | None = None,
    step: Literal["decode", "train", "compile", "time", "table"] = "train",
    only: str = "",
    classes: Literal["species", "breeds"] = "species",
    epochs: int = 6,
    camvid_epochs: int = 30,
    batch_size: int = 32,
    camvid_batch_size: int = 16,
    learning_rate: float = 3e-4,
    scratch_learning_rate: float = 6e-4,
    seed: int = 0,
    images: int | None = None,
    minutes: float = 600.0,
    workers: int = 1,
    repeats: int = 7,
    go: Path | None = None,
    device: str | None = None,
    dry_run: bool = False,
    also: tuple[Path, ...] = (),
    runs: Path = Path("runs/dense"),
    output: Path = Path("results/study_dense.json"),
) -> None:
    """Train detectors on Oxford Pets and segmenters on CamVid, and time them whole; a table in the end.

    Example: python -m lab dense-study --pets pets/ --camvid camvid/ --checkpoint vit_tiny.safetensors

    Args:
        pets: The folder of Oxford Pets (images, annotations).
        camvid: The folder of CamVid (train, trainannot, test, testannot).
        checkpoint: Weights of vit_tiny_patch16_224; without them the ViT-Ti starts from scratch too.
        step: decode: only decode the pictures, which the other steps and processes then find in the folder runs.
            train: work off the queue; several processes may share it, and what is trained is not trained again.
            compile: fill the compiler's cache for the step time, beside other work. time: time what was trained, and
            the rest with fresh weights; to be run alone. What the same code timed already is not timed again.
            table: print what is there.
        only: Only the rows whose name contains this text, or the one whose whole name it is; several parted by |.
        classes: Of the pets: species (cat, dog), which a detector from scratch can learn in minutes, or 37 breeds.
        epochs: Of detectors; adopted rows have half as many.
        camvid_epochs: Of segmenters.
        batch_size: Pictures an update, of detectors.
        camvid_batch_size: Pictures an update, of segmenters.
        learning_rate: The highest one, of rows that start from trained weights.
        scratch_learning_rate: The highest one of rows from scratch.
        seed: Of batches and new weights.
        images: Only so many pictures to learn from and to be judged by.
        minutes: No further row is begun after so many.
        workers: For the steps compile and time: processes that compile; models are still timed in turn.
        repeats: For the step time: how often each form is timed, in turn with the others.
        go: For the steps compile and time: a file. Timing begins when it is there, and nothing is compiled any more.
        device: cpu or cuda; by default the GPU if there is one.
        dry_run: Tiny models on tiny pictures: does every row run here?
        also: Result files of other machines, whose rows and times are taken along where there are none here.
        runs: Folder of the run folders; several processes may share it.
        output: The result file.
    """
    began, place = time.monotonic(), device_of(device)
    sizes = Sizes(detection=64, segmentation=(64, 96), narrow=True) if dry_run else Sizes()
    plan = Plan(
        builder=Builder(checkpoint, sizes), runs=runs, device=place, pets=pets, camvid=camvid, classes=classes,
        epochs=epochs, camvid_epochs=camvid_epochs, batch_size=batch_size, camvid_batch_size=camvid_batch_size,
        learning_rate=learning_rate, scratch_learning_rate=scratch_learning_rate, seed=seed, images=images,
    )  # fmt: skip
    every = {row.label: row for row in all_rows()}
    rows = [every[label] for label in choose(every, only)]
    if step == "decode":
        for row in {row.detects: row for row in rows}.values():
            plan.data(row)
        return
    if step == "train":
        work_off(rows, plan, began + 60 * minutes)
    elif step in ("compile", "time"):
        dtype = "bfloat16" if place.type == "cuda" else "float32"
        how = Conditions(device=place, dtype=dtype, forms=FORMS, repeats=repeats, search=False, go=go)
        if step == "compile":
            compile_models(candidates(rows, plan), plan.builder, how, workers, times_file(runs, place.type))
            return
        time_models(candidates(rows, plan), plan.builder, how, workers, times_file(runs, place.type))
    known = [(read_rows(path), json.loads(path.read_text()).get("times", {})) for path in also]
    times = times_by_device(runs, [each for _, each in known])
    found = gathered(runs, times, [row for rows_there, _ in known for row in rows_there])
    if found or times:
        write_result(record("dense study", found, place, times=times), output)
    console().print(table(found, every))
    console().print(f"{len(found)} rows in {output}")


def times_file(runs: Path, kind: str) -> Path:
    """Where the times on a kind of device are kept."""
    return runs / f"times_{kind}.json"


def candidates(rows: Sequence[Row], plan: Plan) -> list[Candidate]:
    """What is timed: every shape once, so no adopted rows; on a picture of the test split where that is there."""
    chosen = [row for row in rows if not row.adopted]
    number_of = {"species": 2, "breeds": 37}[plan.classes]
    return [
        Candidate(row, plan.model_file(row), number_of if row.detects else CAMVID_CLASSES, picture_for(row, plan))
        for row in chosen
    ]


def picture_for(row: Row, plan: Plan) -> Tensor:
    """The first picture of the test split, between 0 and 1, as large as a detector wants it; or noise of that size."""
    side = plan.builder.sizes.detection
    if (plan.pets if row.detects else plan.camvid) is None:
        return torch.rand((3, side, side) if row.detects else SCENE, generator=torch.Generator().manual_seed(0))
    picture, _ = read_at_full_size(plan.scenes(row, test=True), 0)
    image: Any = V.to_dtype(V.to_image(picture), torch.float32, scale=True)
    return (V.resize(image, [side, side]) if row.detects else image).as_subclass(Tensor)


def times_by_device(runs: Path, others: Sequence[dict[str, Any]] = ()) -> dict[str, dict[str, Any]]:
    """Kind of device → label → times, also of shapes that were not trained.

    Args:
        runs: the folder where they are kept.
        others: the same of other machines.
    """
    found: dict[str, dict[str, Any]] = {}
    mine = {path.stem.removeprefix("times_"): json.loads(path.read_text()) for path in sorted(runs.glob("times_*"))}
    for each in (*others, mine):
        for kind, rows in each.items():
            found[kind] = found.get(kind, {}) | rows
    return found


def gathered(
    runs: Path, times: dict[str, dict[str, Any]], others: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """All rows in the run folders, each with the times of its shape.

    Args:
        runs: the folder of the run folders.
        times: what `times_by_device` gives.
        others: rows of other machines, which are taken along unless they are here as well.
    """
    mine = [row for row in map(read_row, sorted(runs.iterdir()) if runs.is_dir() else ()) if row is not None]
    rows = {tuple(row.get(name) for name in ("model", "epochs", "seed")): row for row in others}
    rows |= {tuple(row.get(name) for name in ("model", "epochs", "seed")): row for row in mine}
    return [
        row | {"times": {kind: each[row["model"]] for kind, each in times.items() if row["model"] in each}}
        for row in rows.values()
    ]


def table(rows: Sequence[dict[str, Any]], order: dict[str, Any]) -> Table:
    """The rows for people, in the order of the queue.

    Args:
        rows: what `gathered` gives.
        order: labels of all rows, the first ones first.
    """
    places = {label: place for place, label in enumerate(order)}
    ranked = sorted(rows, key=lambda row: (places.get(row["model"], len(places)), row.get("epochs", 0)))
    return as_table("detectors and segmenters; figures in per cent", [_line(row) for row in ranked], ("model", "start"))


def _line(row: dict[str, Any]) -> dict[str, str]:
    if "failed" in row:
        return {"model": row["model"], "start": f"failed: {row['failed']}"}
    figures, before = row["figures"], row["before_training"]
    line = {"model": row["model"], "start": row["start"], "epochs": str(row["epochs"])}
    for title, name in (("AP", "ap"), ("AP50", "ap50"), ("mask AP", "mask_ap"), ("mIoU", "miou"),
                        ("pixels", "pixel_accuracy")):  # fmt: skip
        line[title] = number(figures.get(name), ".1f")
    line["fitted alone"] = number(before.get("ap", before.get("miou")), ".1f")
    line |= {"M": number(row["parameters"] / 1e6, ".1f"), "G MACs": number(row["macs"] / 1e9, ".2f")}
    for kind, timed in row["times"].items():
        for form, value in timed["milliseconds"].items():
            line[f"{kind} {form}, ms"] = f"{value:.2f}"
        line[f"{kind} ×"] = number(timed["over_unchanged"], ".2f")
    return line
