"""A pack repeated to a million rows, embedded in one run: throughput beside the model's own, and memory over the run.

python -m lab predict-million deit_small_patch16_224 pack.npz --rows 1000000 --output results/predict_million.json
"""

import dataclasses
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from leanformer.core import input_of
from leanformer.measure import record, write_result
from leanformer.prediction import Predictions, Records, Settings, open_records

from .arguments import open_model


@dataclasses.dataclass(frozen=True)
class Repeated:
    """The same pictures over and over, up to so many rows."""

    once: Records
    rows: int
    batched: bool = True
    shareable: bool = True

    @property
    def name(self) -> str:
        return f"{self.once.name} repeated to {self.rows} rows"

    def __len__(self) -> int:
        return self.rows

    def key(self, index: int) -> str:
        return f"{self.once.key(index % len(self.once))}#{index // len(self.once)}"

    def read(self, index: int) -> Any:
        return self.once.read(index % len(self.once))

    def fingerprint(self) -> str:
        return f"{self.once.fingerprint()} {self.rows}"


def model_rate(answers: Predictions, seconds: float = 5.0) -> float:
    """Images a second of the same form of the model on images that lie on its device already."""
    device, size = answers.settings.on(), answers.settings.batch_size or 1
    images = torch.randn(size, *input_of(answers.model)["input_size"], device=device)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    task = answers.answers
    for _ in range(3):
        task.compute(images)
    wait()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(10 if device.type == "cuda" else 1):
            task.compute(images)
            count += size
        wait()
    return count / (time.perf_counter() - start)


def resident(process: int | str = "self") -> float:
    """Memory of a process now, in MiB; 0 where it is gone or the system does not tell."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return 0.0


def memory_now() -> tuple[float, float, float]:
    """MiB of this process, of the processes that read for it, and on the GPU."""
    readers = sum(resident(child.pid or 0) for child in multiprocessing.active_children())
    gpu = torch.cuda.memory_reserved() / 2**20 if torch.cuda.is_available() else 0.0
    return round(resident(), 1), round(readers, 1), round(gpu, 1)


class Watched(Predictions):
    """Predictions that note the memory of their processes as they go."""

    def batches(self, *arguments: Any, **options: Any) -> Any:
        """The batches, as of any predictions."""
        self.memory: list[tuple[float, float, float]] = []
        every = max(1, len(self) // (self.settings.batch_size or 1) // 100)
        for number, batch in enumerate(super().batches(*arguments, **options)):
            if number % every == 0:
                self.memory.append(memory_now())
            yield batch


def memory_told(seen: list[tuple[float, float, float]]) -> dict[str, dict[str, float]]:
    """The memory a tenth into a run, at its end, and at most.

    >>> memory_told([(1.0, 0.0, 0.0), (2.0, 0.0, 0.0)])["process"]
    {'tenth': 1.0, 'last': 2.0, 'most': 2.0}
    """
    columns = zip(("process", "readers", "gpu"), zip(*seen))
    return {name: {"tenth": kind[len(kind) // 10], "last": kind[-1], "most": max(kind)} for name, kind in columns}


def predict_million(
    model: Annotated[str, tyro.conf.Positional],
    pack: Annotated[str, tyro.conf.Positional],
    rows: int = 1_000_000,
    batch_size: int | None = None,
    device: str | None = None,
    optimized: bool | None = None,
    workers: int | None = None,
    output: Path | None = None,
) -> int:
    """Embed a pack repeated to many rows, and tell what it took.

    Example: python -m lab predict-million deit_small_patch16_224 pack.npz --output results/predict_million_h200.json

    Args:
        model: A model's name or a leanformer checkpoint.
        pack: An npz pack.
        rows: How many rows.
        batch_size: Images at a time.
        device: cpu or cuda; the fastest by default.
        optimized: Search for the fastest form first; by default on a GPU.
        workers: Processes that decode.
        output: A JSON file for the figures.
    """
    settings = Settings(top=1, embed="float16", batch_size=batch_size, device=device, optimized=optimized)
    opened = open_model(model)
    answers = Watched(opened, Repeated(open_records(pack), rows), settings, workers)
    before = model_rate(answers)
    with tempfile.TemporaryDirectory() as folder:
        report = answers.save(Path(folder) / "vectors")
        written = sum(path.stat().st_size for path in (Path(folder) / "vectors").iterdir())
    after = model_rate(answers)
    rate, own = report.rows / report.seconds, max(before, after)
    row = {
        "model": model, "rows": report.rows, "failed": report.failed, "seconds": report.seconds,
        "images_per_second": rate, "model_images_per_second": own, "share_of_model": rate / own,
        "shares": report.shares, "bound": report.bound, "bytes_written": written,
        "memory_mib": memory_told(answers.memory),
    }  # fmt: skip
    print(f"{report}\n{rate / own:.1%} of the model's own {own:,.0f} a second; memory {row['memory_mib']}")
    if output is not None:
        about = {"pack": Path(pack).name, "batch": answers.settings.batch_size, "dtype": answers.settings.dtype}
        write_result(record("predict_million", [row], str(answers.settings.on()), **about), output)
    return 0
