"""A run of predict that is killed again and again gives the rows of one that was left alone.

    100,000 pictures → predict, left alone                                    → rows A
                     → the same, SIGKILL at ten random moments, then finished → rows B = A, to the last bit

Half of the moments lie between the start of a process and its first part, the other half behind that part. Processes
are forked from this one, so that they do not spend their time on imports.
"""

import dataclasses
import io
import multiprocessing
import random
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import leanformer as lf
from leanformer.data import write_pack
from leanformer.measure import LoadByOthers, record, write_result

DIMS: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}
PACK = 10_000
"""Pictures of a pack."""


def encoded(index: int, width: int) -> bytes:
    """The bytes of a JPEG of noise, its own for each number."""
    pixels = np.random.default_rng(index).integers(0, 256, (32, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=80)
    return file.getvalue()


def write_packs(folder: Path, count: int, bad: int = 7) -> None:
    """Packs of pictures 32 or 36 pixels wide, of which `bad` are no pictures."""
    folder.mkdir(parents=True)
    none = set(np.linspace(0, count - 1, bad + 2, dtype=int)[1:-1].tolist())
    for start in range(0, count, PACK):
        indices = range(start, min(start + PACK, count))
        files = [b"no picture" if index in none else encoded(index, 32 + index % 2 * 4) for index in indices]
        write_pack(folder / f"pack_{start:07}.npz", files, [0] * len(files))


@dataclasses.dataclass(frozen=True)
class Run:
    """One call of predict, in a process of its own."""

    model: nn.Module
    source: Path
    output: Path
    workers: int

    def start(self) -> BaseProcess:
        """A process that writes the output."""
        process = multiprocessing.get_context("fork").Process(target=self.work)
        process.start()
        return process

    def work(self) -> None:
        """What the process does."""
        answers = lf.predict(self.model, self.source, embed=True, device="cpu", batch_size=32, workers=self.workers)
        answers.save(self.output)

    def parts(self) -> list[Path]:
        """The parts that are whole."""
        return sorted(Path(f"{self.output}.parts").glob("part-*"))

    def rows_done(self) -> int:
        """Rows in the parts that are whole."""
        return sum(int(path.stem.split("-")[2]) - int(path.stem.split("-")[1]) for path in self.parts())


def ended(process: BaseProcess) -> bool:
    """Whether a process has ended by itself; refuses one that failed."""
    if process.exitcode:
        raise ValueError(f"predict ended with {process.exitcode} though nobody killed it")
    return process.exitcode is not None


def left_alone(run: Run) -> tuple[float, float]:
    """Seconds of a whole run, and of its start until the first part is there (or all is)."""
    begun, first, process = time.monotonic(), None, run.start()
    while not ended(process):
        if first is None and run.parts():
            first = time.monotonic() - begun
        time.sleep(0.05)
    whole = time.monotonic() - begun
    return whole, first or whole


def killed(run: Run, kills: int, first: float, draw: random.Random) -> list[dict[str, Any]]:
    """Start the run and kill it, `kills` times; what each attempt left behind. Ends early if one was done first.

    Args:
        run: What is run.
        kills: How often it is killed.
        first: Seconds from the start of a process to its first part.
        draw: Draws the moments.
    """
    attempts: list[dict[str, Any]] = []
    while len(attempts) < kills:
        begun, before, process = time.monotonic(), len(run.parts()), run.start()
        done = False
        if draw.random() < 0.5:
            while len(run.parts()) == before and not (done := ended(process)):
                time.sleep(0.01)
        moment = time.monotonic() + draw.uniform(0, first / 2)
        while not done and time.monotonic() < moment and not (done := ended(process)):
            time.sleep(0.005)
        if done:
            break
        process.kill()
        process.join()
        attempts.append({"killed_after": round(time.monotonic() - begun, 2), "rows_whole": run.rows_done()})
    return attempts


def same_rows(first: Path, second: Path) -> tuple[int, bool]:
    """How many rows there are, and whether both files hold the same ones in the same order, to the last bit."""
    import pyarrow.parquet as parquet

    one, other = parquet.read_table(first), parquet.read_table(second)
    return len(one), one.equals(other)


def predict_kills(
    images: int = 100_000,
    kills: int = 10,
    workers: int = 1,
    seed: int = 0,
    folder: Path | None = None,
    output: Path | None = None,
) -> int:
    """Predict over many small pictures, killed at random moments, against a run that was left alone.

    Example: python -m lab predict-kills --output results/predict_kills_cpu.json

    Args:
        images: How many pictures.
        kills: How many processes are killed before one may finish.
        workers: Processes that read pictures.
        seed: Of the moments.
        folder: Where pictures and rows go; a temporary place by default.
        output: A JSON file for the figures.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        root, others = Path(place), LoadByOthers()
        torch.set_num_threads(1)  # threads would not be there in forked processes
        write_packs(root / "photos", images)
        model = lf.create("vit", **DIMS).eval()
        alone = Run(model, root / "photos", root / "alone.parquet", workers)
        whole, first = left_alone(alone)
        run = dataclasses.replace(alone, output=root / "killed.parquet")
        attempts = killed(run, kills, first, random.Random(seed))
        if not run.output.exists():
            left_alone(run)
        rows, same = same_rows(alone.output, run.output)
        left = sorted(path.name for path in root.iterdir() if path.name.startswith((".killed", "killed.parquet.")))
        share = others.share()
    row = {
        "images": images, "rows": rows, "rows_equal": same, "kills": len(attempts), "attempts": attempts,
        "seconds_left_alone": round(whole, 1), "seconds_to_first_part": round(first, 1), "workers": workers,
        "files_left_behind": left, "load_by_others": None if share is None else round(share, 2),
    }  # fmt: skip
    print(f"{rows} rows, {len(attempts)} kills: {'equal' if same else 'NOT EQUAL'}")
    if output is not None:
        write_result(record("predict kills", [row], seed=seed, model=DIMS), output)
    return 0 if same and rows == images and len(attempts) == kills and not left else 1
