"""python -m lab dense: latency a picture of the detectors and segmenters of RePaFormer's Table 6, and of PoolFormers.

    eager               the whole model, from the picture to boxes or logits
    backbone            its backbone alone, on the picture as the network sees it
    compiled backbone   the whole model with that part compiled
    optimised           the whole model after lf.optimize for this picture; of a detector, its backbone

A model and its lean form are timed in turn in one process. Their weights are fresh: an R-CNN passes its usual 1000
regions on, but a RetinaNet finds nothing, so that suppression costs it less than it would after training.

Compiling takes minutes and needs no quiet: `--step compile` does it ahead, in several processes, and `--step time` then
finds what was compiled. With `--go FILE` it prepares all, waits for that file, and times what is prepared by then. A
run that was stopped goes on with the models that its file lacks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from torch import nn

import leanformer as lf
from leanformer.core import fold
from leanformer.measure import choose, console, record, rows_to_resume, write_result
from leanformer.papers.repa.dense import ADE20K, COCO, SIZES, TABLE6, build_dense

from .arguments import device_of
from .compile_together import compile_together, told
from .studies.dense_timing import FORMS, Conditions, Entry, as_row, compile_ahead, is_timed, shared_cores, time_group

POOLFORMERS = ("PoolFormer-S12", "RIFormer-S12", "PoolFormer-S24", "RIFormer-S24")
KINDS = {"RetinaNet": "retinanet", "Mask R-CNN": "mask_rcnn", "Semantic FPN": "fpn"}


def entries() -> Iterator[Entry]:
    """The twelve models of Table 6, then PoolFormers and RIFormers; lean ones fused."""
    for kind, backbones in TABLE6.items():
        for backbone, (paper, _) in backbones.items():
            yield Entry(kind, backbone, partial(build_dense, kind, backbone), SIZES[kind], paper)
    for kind in KINDS:
        for backbone in POOLFORMERS:
            size = (3, 512, 512) if kind == "Semantic FPN" else SIZES[kind]
            yield Entry(kind, backbone, partial(_around_poolformer, kind, backbone), size)


def _around_poolformer(kind: str, backbone: str) -> nn.Module:
    name = backbone.lower().replace("-", "_")
    body = lf.create(name)
    body = fold(body) if name.startswith("riformer") else body
    if kind == "Semantic FPN":
        return lf.tasks.segmenter(KINDS[kind], body, ADE20K)
    return lf.tasks.detector(KINDS[kind], body, COCO)


def dense(
    device: str | None = None,
    dtype: str = "float32",
    size: tuple[int, int] | None = None,
    forms: tuple[str, ...] = FORMS,
    repeats: int = 7,
    search: bool = True,
    only: str = "",
    step: Literal["time", "compile"] = "time",
    workers: int = 1,
    go: Path | None = None,
    output: Path | None = None,
) -> None:
    """Latency a picture of the detectors and segmenters of RePaFormer's Table 6, and of PoolFormers and RIFormers.

    Example: python -m lab dense --only "RetinaNet, " --output results/dense_h200.json

    Args:
        device: cpu or cuda; by default the GPU if there is one.
        dtype: float32, or bfloat16 or float16 by autocast.
        size: Height and width of the picture instead of 800 x 1280 (detectors) and 512 x 512 (segmenters).
        forms: eager, backbone, compiled backbone, optimised.
        repeats: How often each form is timed, in turn with the others.
        search: Let lf.optimize time its steps on the model; without it, it takes those that are known to pay.
        only: Only the rows whose name contains this text, as "Mask R-CNN, Swin"; several texts are parted by |.
        step: compile: only fill the compiler's cache, beside other work. time: time; alone but for what go tells.
        workers: Processes that compile at the same time; models are still timed in turn.
        go: A file. Timing begins when it is there, and what is not compiled by then is left out.
        output: Write the result as JSON after each pair; what the same code left there is not timed again.
    """
    unknown = [form for form in forms if form not in FORMS]
    if unknown:
        raise ValueError(f"unknown form '{unknown[0]}'; known: {', '.join(FORMS)}")
    place = device_of(device)
    every = {entry.label: entry if size is None else replace(entry, size=(3, *size)) for entry in entries()}
    chosen = [every[label] for label in choose(every, only)]
    how = Conditions(device=place, dtype=dtype, forms=forms, repeats=repeats, search=search, go=go)
    known = rows_to_resume(output, {"kind": "dense"})

    def timed(entry: Entry) -> bool:
        return is_timed(known, entry.label, entry.size, how)

    groups = [group for group in pairs(chosen) if not all(map(timed, group))]
    if step == "compile":
        compile_ahead([entry for group in groups for entry in group], how, workers)
        return
    rows = [row for row in known if any(row["label"] == entry.label and timed(entry) for entry in every.values())]
    jobs = [partial(time_group, group, how) for group in groups]
    with shared_cores(min(workers, len(jobs))):
        for _, found in told(compile_together(jobs, workers), len(jobs), _labels):
            fresh = [as_row(row, how) for row in found or ()]
            rows = [row for row in rows if row["label"] not in {each["label"] for each in fresh}] + fresh
            rows.sort(key=lambda row: list(every).index(row["label"]))
            if output is not None:
                write_result(record("dense", rows, place), output)
    console().print(_table(rows, forms))


def pairs(chosen: Iterable[Entry]) -> list[list[Entry]]:
    """The models of one kind around the same backbone, as it is and lean."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in chosen:
        unchanged = entry.backbone.removeprefix("RePa-").replace("RIFormer", "PoolFormer")
        groups.setdefault((entry.kind, unchanged), []).append(entry)
    return list(groups.values())


def _labels(job: Any) -> str:
    return "; ".join(entry.label for entry in job.args[0])


def _table(rows: list[dict[str, Any]], forms: tuple[str, ...]) -> Table:
    table = Table(title="latency a picture in ms, one at a time", title_justify="left")
    for name in ("model", "picture", "M parameters", "G MACs", *forms, "paper"):
        table.add_column(name, justify="left" if name in ("model", "picture") else "right")
    for row in rows:
        times = (
            f"{row['milliseconds'][form]:.1f} ± {100 * row['spread'][form]:.0f}%"
            if form in row["milliseconds"]
            else "–"
            for form in forms
        )
        size = " x ".join(str(side) for side in row["size"][1:])
        table.add_row(row["label"], size, f"{row['parameters']:.1f}", f"{row['macs']:.1f}", *times, row["paper"])
    return table
