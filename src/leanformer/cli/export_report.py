"""What `leanformer export` says of its files: agreement with the model, accuracy, size and speed, in one table."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from ..data.sources import Data
from ..export import Run
from ..measure import record, write_result
from ..measure.terminal import console
from ..measure.timing import interleave
from ..train.evaluation import Conditions, measure

BATCH = 8
"""Images at a time, for accuracy and for speed: the largest batch that every format takes."""


@dataclass
class Row:
    """One file, or the PyTorch model itself, with what was measured of it."""

    name: str
    file: str | None = None
    bytes: int | None = None
    error: float | None = None
    """The largest error over the largest output, in the comparison."""
    bf16_error: float | None = None
    boxes: int | None = None
    """Of a detector: by how many boxes it was compared."""
    top1: float | None = None
    top5: float | None = None
    images_per_second: float | None = None
    spread: float | None = None
    latency_p50: float | None = None
    """Seconds for one image."""


class Runner(nn.Module):
    """An opened file in the place of a model."""

    def __init__(self, run: Run):
        super().__init__()
        self.run = run

    def forward(self, images: Tensor) -> Tensor:
        return self.run(images)


def add_accuracy(rows: list[Row], runs: dict[str, Run], data: Data, config: dict[str, Any]) -> None:
    """Top-1 and top-5 of every row on the same images."""
    for row in rows:
        found = measure(Runner(runs[row.name]), data, config, Conditions.on("cpu", BATCH))
        row.top1, row.top5 = found.top1, found.top5


def add_speed(rows: list[Row], runs: dict[str, Run], images: Tensor, repeats: int) -> None:
    """Images a second in batches and the latency of one image, all rows in turn."""
    batch = images[torch.arange(BATCH) % len(images)]
    for size in (BATCH, 1):
        calls = {row.name: _call(runs[row.name], batch[:size]) for row in rows}
        timings = interleave(calls, torch.device("cpu"), repeats)
        for row in rows:
            timing = timings[row.name]
            if size == 1:
                row.latency_p50 = timing.percentile(0.5)
            else:
                row.images_per_second, row.spread = size / timing.median, timing.spread


def _call(run: Run, images: Tensor) -> Any:
    return lambda: run(images)


def report(rows: list[Row], model: str, data: str | None, calibration: str | None, result: Path | None) -> None:
    """Print the table and, where asked for, write it as a result."""
    console().print(_table(rows, model, data))
    if result is not None:
        found = [dataclasses.asdict(row) | {"file": row.file and Path(row.file).name} for row in rows]
        more = {"model": model, "data": data, "calibration": calibration, "batch": BATCH}
        console().print(f"wrote {write_result(record('export', found, **more), result)}")


def _table(rows: list[Row], model: str, data: str | None) -> Table:
    columns = {
        "format": lambda row: row.name,
        "MB": lambda row: row.bytes and f"{row.bytes / 1e6:.1f}",
        "error": lambda row: None if row.error is None else f"{row.error:.1e}",
        "in bf16": lambda row: None if row.bf16_error is None else f"{row.bf16_error:.1e}",
        "boxes": lambda row: None if row.boxes is None else str(row.boxes),
        "top-1": lambda row: None if row.top1 is None else f"{row.top1:.2f}%",
        "top-5": lambda row: None if row.top5 is None else f"{row.top5:.2f}%",
        f"img/s at batch {BATCH}": lambda row: row.images_per_second and f"{row.images_per_second:.1f}",
        "±": lambda row: None if row.spread is None else f"{row.spread:.0%}",
        "ms for one": lambda row: row.latency_p50 and f"{row.latency_p50 * 1e3:.1f}",
        "file": lambda row: row.file,
    }
    told = {name: show for name, show in columns.items() if any(show(row) for row in rows)}
    table = Table(title=f"{model}{'' if data is None else f' on {data}'}", title_justify="left")
    for name in told:
        table.add_column(name, justify="left" if name in ("format", "file") else "right")
    for row in rows:
        table.add_row(*(show(row) or "" for show in told.values()))
    return table
