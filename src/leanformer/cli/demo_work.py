"""What `leanformer demo` does: the main job from end to end, on handwritten digits that come with scikit-learn.

    train a ViT → apply RePa + EViT → fit the start → distil → fuse (proven) → measure side by side → report

Everything is left in a folder: checkpoints, table, plots and a report.html that any browser shows.
"""

import copy
import dataclasses
import html
import time
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from sklearn.datasets import load_digits
from timm.layers import build_sincos2d_pos_embed
from torch import Tensor, nn

from ..backbones import create
from ..core import apply, calibrate, fuse, input_of, method_from, save, with_options
from ..data.view import EvaluationView
from ..measure import compare
from ..measure.terminal import as_text, console
from ..papers.recipes import plain
from ..train import Recipe, evaluate, fit
from .demo_pictures import kept_picture, trade_off_picture

DEVICE = "cpu"
THREADS = 1
"""Matrices as small as these gain nothing from more threads, and on a busy machine threads wait for each other."""
SIZE, PATCH = 24, 4
KEEP_RATES = (0.9, 0.8, 0.7, 0.6, 0.5)
Split = tuple[Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class Line:
    """One row of the demo's table."""

    name: str
    top1: float
    parameters: int
    macs: int
    images_per_second: float


def run(output: Path, epochs: int, lean_epochs: int, seed: int) -> None:
    """Train a small ViT, make it lean, and write what it gained and lost into a folder.

    Args:
        output: The folder for checkpoints, table, pictures and report.html.
        epochs: Epochs of the backbone.
        lean_epochs: Epochs of distillation.
        seed: Of weights and batches.
    """
    began, out = time.perf_counter(), console()
    torch.set_num_threads(THREADS)
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    train, test = digits()

    out.rule("1  train a ViT on handwritten digits")
    teacher = small_vit()
    _fit(teacher, train, test, _recipe(epochs, 2e-3), seed)

    out.rule("2  apply RePa and EViT, start from the trained weights, distil")
    methods = (method_from("repa", {"idle_ratio": 0.75}), method_from("evit", {"keep_rate": 0.6}))
    lean = apply(teacher, *methods)
    untrained = evaluate(lean, test, device=DEVICE).top1
    lean = calibrate(lean, teacher, view(lean, train[0][:512]))
    fitted = evaluate(lean, test, device=DEVICE).top1
    out.print(f"top-1 right after apply {untrained:.1f}%, after calibrate on 512 images {fitted:.1f}%")
    _fit(lean, train, test, _recipe(lean_epochs, 1e-3), seed, teacher)

    out.rule("3  fuse")
    fast = fuse(lean)
    exactness = fusing_error(lean, view(lean, test[0][:64]))
    out.print(f"largest difference of a logit before and after fuse, in float64: {exactness:.1e}")

    out.rule("4  measure side by side")
    models = {"backbone": teacher, "RePa + EViT": lean, "RePa + EViT, fused": fast}
    others = {f"keep {rate}": with_options(fast, keep_rate=rate) for rate in KEEP_RATES}
    measured = _measure(models | others, test)
    lines, curve = measured[: len(models)], measured[len(models) :]
    table = render(lines)
    out.print(table)
    out.print("the lean model was trained for longer: as the backbone, then distilled; one digit is 0.2 points")

    for name, model in (("teacher", teacher), ("lean", lean), ("fast", fast)):
        save(model, output / f"{name}.safetensors")
    trade_off_picture(lines[0], lines[-1], curve, output / "trade-off.png")
    kept_picture(lean, *_samples(test), view, output / "kept.png")
    text = as_text(table)
    (output / "table.txt").write_text(text)
    seconds = time.perf_counter() - began
    (output / "report.html").write_text(report(text, exactness, untrained, fitted, seconds))
    out.print(f"\n{seconds:.0f} s; open {output}/report.html")


def digits() -> tuple[Split, Split]:
    """1797 handwritten digits as uint8 (n, 3, 8, 8) with labels: three quarters to train on, the rest to test."""
    found: Any = load_digits()
    images = torch.from_numpy(found.images * 255 / 16).to(torch.uint8)[:, None].expand(-1, 3, -1, -1).contiguous()
    labels = torch.from_numpy(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1347], order[1347:]
    return (images[train], labels[train]), (images[test], labels[test])


def small_vit() -> nn.Module:
    """A ViT of four blocks over 6 x 6 patches, its position embedding started from the plane's sines and cosines."""
    model: Any = create("vit", img_size=SIZE, patch_size=PATCH, embed_dim=64, depth=4, num_heads=4, num_classes=10)
    model.pos_embed.data[0, 1:] = build_sincos2d_pos_embed(list(model.patch_embed.grid_size), dim=64)
    return model


def view(model: nn.Module, images: Tensor) -> Tensor:
    """Images as the model sees them in evaluation."""
    return EvaluationView(input_of(model))(images)


def _recipe(epochs: int, rate: float) -> Recipe:
    """Small crops are the only augmentation: a digit must not be mirrored."""
    return plain(
        epochs=epochs, batch_size=16, learning_rate=rate, warmup_epochs=0.5, crop_scale=(0.9, 1.0),
        crop_ratio=(0.9, 1.1), clip_grad=1.0, method_schedules=False,
    )  # fmt: skip


def _fit(
    model: nn.Module, train: Split, test: Split, recipe: Recipe, seed: int, teacher: nn.Module | None = None
) -> None:
    fit(model, recipe=recipe, data=train, val=test, teacher=teacher, device=DEVICE, seed=seed, evaluate_every=2)


@torch.no_grad()
def fusing_error(model: nn.Module, images: Tensor) -> float:
    """The largest difference that fusing makes to an answer, computed in float64."""
    exact = copy.deepcopy(model).double().eval()
    return (exact(images.double()) - fuse(exact)(images.double())).abs().max().item()


def _measure(models: dict[str, nn.Module], test: Split) -> list[Line]:
    """Accuracy, size and speed of each model, timed in turn on the same machine."""
    timed = compare(models, device=DEVICE, batches=[64], modes=["eager"], repeats=5)
    return [
        Line(row.model, evaluate(models[row.model], test, device=DEVICE).top1, row.parameters, row.macs, row.throughput)
        for row in timed.rows
    ]


def render(lines: list[Line]) -> Table:
    """The models side by side; the first is the yardstick."""
    table = Table("model", "top-1", "parameters", "MACs", "img/s", "speed", title="handwritten digits, CPU, batch 64")
    table.title_justify = "left"
    for line in lines:
        table.add_row(
            line.name, f"{line.top1:.1f}%", f"{line.parameters / 1e3:.0f} k", f"{line.macs / 1e6:.2f} M",
            f"{line.images_per_second:.0f}", f"{line.images_per_second / lines[0].images_per_second:.2f}x",
        )  # fmt: skip
    return table


def _samples(test: Split) -> Split:
    """The first picture of every digit."""
    first = torch.tensor([int((test[1] == digit).nonzero()[0]) for digit in range(10)])
    return test[0][first], test[1][first]


def report(table: str, exactness: float, untrained: float, fitted: float, seconds: float) -> str:
    """A page that a browser shows without a server; the pictures lie beside it."""
    return f"""<!doctype html>
<meta charset="utf-8"><title>leanformer demo</title>
<style>body {{ font: 16px/1.5 sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }}
pre {{ background: #f4f4f4; padding: 1rem; overflow-x: auto; line-height: 1.2 }} img {{ max-width: 100% }}</style>
<h1>leanformer demo</h1>
<p>A ViT was trained on scikit-learn's handwritten digits. RePa made three quarters of its hidden FFN channels idle,
EViT lets 60% of the patches go on at each of three places. Right after that the model had {untrained:.1f}% top-1,
after fitting the new parts to the backbone on 512 images {fitted:.1f}%; then it was
distilled from the backbone and fused.</p>
<pre>{html.escape(table)}</pre>
<p>The lean model has had more training than its backbone, the epochs of distillation, so its accuracy here is no claim
that leaner is better; with 450 test digits one of them is 0.2 points.</p>
<p>Fusing changed no logit by more than {exactness:.1e} in float64. The whole took {seconds:.0f} s.</p>
<h2>Accuracy against speed</h2>
<p>The fused model at other keep rates, without further training.</p><img src="trade-off.png" alt="trade-off">
<h2>What is looked at</h2>
<p>Patches that are left after each of the three places.</p><img src="kept.png" alt="kept patches">
<p>Checkpoints: teacher.safetensors, lean.safetensors (trainable), fast.safetensors (fused).</p>
"""
