"""predict beside the model's own throughput on this machine, in turn: how much reading, decoding and writing cost.

turn: the model on images that lie in memory (as `leanformer bench` times it) → predict over a folder or a pack
"""

import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

import leanformer as lf
from leanformer.core import input_of
from leanformer.measure import LoadByOthers, record, time_calls, write_result

from .arguments import Apply, open_model
from .serve_load import write_pictures


def own_rate(model: Any, batch: int, device: torch.device, repeats: int) -> float:
    """Images a second of the fused model on a batch that lies on its device."""
    images = torch.randn(batch, *input_of(model)["input_size"], device=device)
    ready = model.to(device).eval()
    with torch.inference_mode():
        ready(images)
        seconds, _ = time_calls(lambda: ready(images), repeats, device)
    return batch / statistics.median(seconds)


def predict_bench(
    model: Annotated[str, tyro.conf.Positional] = "deit_small_patch16_224",
    methods: Apply = ("evit:keep_rate=0.7",),
    source: str | None = None,
    images: int = 256,
    batch_size: int = 8,
    turns: int = 5,
    device: str = "cpu",
    output: Path | None = None,
) -> int:
    """The throughput of predict as a share of the model's own, and what the time went to.

    Example: python -m lab predict-bench --output results/predict_bench_cpu.json

    Args:
        model: A model's name or a leanformer checkpoint.
        methods: Methods that are applied to it.
        source: Pictures; by default JPEG files of up to 500 x 375 pixels that are made here.
        images: How many files are made.
        batch_size: Images at a time, in both.
        turns: How often both are timed.
        device: cpu or cuda.
        output: A JSON file for the figures.
    """
    lean, place = lf.fuse(open_model(model, methods=methods)), torch.device(device)
    rates, shares, bound, others = [], {}, "", LoadByOthers()
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "photos"
        write_pictures(photos, 0 if source else images)
        for _ in range(turns):
            own = own_rate(lean, batch_size, place, max(1, images // batch_size))  # for as long as predict will take
            answers = lf.predict(lean, source or photos, device=device, batch_size=batch_size, dtype="float32")
            report = answers.save(Path(folder) / "answers.parquet", overwrite=True)
            rates.append((own, report.rows / report.seconds))
            shares, bound = report.shares, report.bound
            print(f"model {own:.1f}, predict {rates[-1][1]:.1f} a second; {report}")
    share = others.share()
    row = {
        "model": f"{model} {'+'.join(methods)}".strip(), "batch": batch_size,
        "source": source or f"{images} JPEG files of up to 500 x 375 pixels",
        "model_images_per_second": [round(own, 2) for own, _ in rates],
        "predict_images_per_second": [round(rate, 2) for _, rate in rates],
        "share_of_model": round(statistics.median(rate / own for own, rate in rates), 3),
        "shares": {stage: round(part, 4) for stage, part in shares.items()}, "bound": bound,
        "load_by_others": None if share is None else round(share, 2),
    }  # fmt: skip
    print(f"{row['share_of_model']:.1%} of the model's own throughput, bounded by {bound}")
    if output is not None:
        write_result(record("predict bench", [row], place), output)
    return 0
