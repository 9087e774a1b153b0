"""What `leanformer demo` does: the main job from end to end, on handwritten digits that come with the package.

    train a ViT → lf.lean: time, search, calibrate, distil, fuse, time again → table and report

Everything is left in a folder: checkpoints, the plan, a table and a report.html that any browser shows. The digits are
the test set of E. Alpaydin and C. Kaynak's optical recognition data (UCI Machine Learning Repository, CC BY 4.0).
"""

import shutil
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from timm.layers import build_sincos2d_pos_embed
from torch import Tensor, nn

from ..backbones import create
from ..core import METHODS, input_of, save
from ..data.view import EvaluationView
from ..measure import compare
from ..measure.terminal import as_text, console
from ..papers.recipes import plain
from ..search.make_lean import lean
from ..train import Recipe, evaluate, fit

DEVICE = "cpu"
THREADS = 1
"""Matrices as small as these gain nothing from more threads, and on a busy machine threads wait for each other."""
SIZE, PATCH = 24, 4
BATCH = 64
SPEEDUP = 1.8
PARTS = ("tokens", "ffn")
"""What the methods that are tried make cheaper."""
LEAN, TEACHER, TABLE = "lean", "teacher.safetensors", "table.txt"
MARK = ".demo"
"""A file in the folder of the lean model: the demo made that folder, so the next one may remove it."""
Split = tuple[Tensor, Tensor]


def run(output: Path, epochs: int, lean_epochs: int, seed: int) -> None:
    """Train a small ViT, make it lean, and write what it gained and lost into a folder.

    Args:
        output: The folder for checkpoints, table, plan and report.html.
        epochs: Epochs of the backbone.
        lean_epochs: Epochs of distillation.
        seed: Of weights and batches.
    """
    began, out = time.perf_counter(), console()
    torch.set_num_threads(THREADS)
    folder = begin(output)
    torch.manual_seed(seed)
    train, test = digits()

    out.rule("1  train a ViT on handwritten digits")
    teacher = small_vit()
    fit(teacher, recipe=_recipe(epochs, 2e-3), data=train, val=test, device=DEVICE, seed=seed, evaluate_every=2)
    save(teacher, output / TEACHER)

    out.rule(f"2  make it lean: {SPEEDUP} times as fast, on this machine")
    methods = tuple(name for part in PARTS for name in METHODS if _soon_good(name, part, teacher))
    try:
        result = lean(
            teacher, train, judge=test, speedup=SPEEDUP, device=DEVICE, batch=BATCH, runtime="eager", methods=methods,
            sizes=False, evaluations=40, recipe=_recipe(lean_epochs, 1e-3), output=folder, seed=seed,
            said=lambda text: out.print(text, highlight=False, markup=False),
        )  # fmt: skip
    except KeyboardInterrupt:
        out.print("but a new demo begins anew, with a teacher of its own", highlight=False)
        raise
    told = "" if result.met else ", so the target is not met"
    out.print(f"{result.speedup:.2f} times as fast as the teacher, timed in turn with it{told}", highlight=False)

    out.rule("3  side by side")
    table = side_by_side({"backbone": teacher, "lean, fused": result.model}, test)
    out.print(table)
    out.print("the lean model was trained for longer: as the backbone, then distilled; one digit is 0.2 points")
    (output / TABLE).write_text(as_text(table))
    out.print(f"\n{time.perf_counter() - began:.0f} s; open {folder}/report.html")


def _soon_good(name: str, part: str, model: nn.Module) -> bool:
    """Whether a method makes this part cheaper and is good without a long training, for which there is no time."""
    offered = METHODS[name].choices(model) if METHODS[name].acts_on == part else None
    return offered is not None and not offered.trained


def begin(output: Path) -> Path:
    """An empty folder for the lean model in the output folder; what an earlier demo left in it is removed.

    Args:
        output: The output folder.

    Raises:
        ValueError: Something that no demo made stands where this one would write.
    """
    folder = output / LEAN
    if not (folder / MARK).is_file():
        for path in (folder, output / TEACHER, output / TABLE):
            if path.exists():
                raise ValueError(f"{path} is there already and is not of an earlier demo; give another --output")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    return folder


def digits() -> tuple[Split, Split]:
    """1797 handwritten digits as uint8 (n, 3, 8, 8) with labels: three quarters to train on, the rest to test."""
    with (files("leanformer.cli") / "digits.npz").open("rb") as file, np.load(file) as found:
        grey, labels = torch.from_numpy(found["images"]), torch.from_numpy(found["labels"]).long()
    images = (grey.float() * 255 / 16).to(torch.uint8)[:, None].expand(-1, 3, -1, -1).contiguous()
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


def side_by_side(models: dict[str, nn.Module], test: Split) -> Table:
    """Accuracy, size and speed of models, timed in turn on the same machine; the first is the yardstick.

    Args:
        models: The models by name.
        test: Images and labels to judge them on.
    """
    columns, title = (
        ("model", "top-1", "parameters", "MACs", "img/s", "speed"),
        f"handwritten digits, CPU, batch {BATCH}",
    )
    table = Table(*columns, title=title, title_justify="left")
    rows = compare(models, device=DEVICE, batches=[BATCH], modes=["eager"], repeats=5).rows
    for row in rows:
        top1 = evaluate(models[row.model], test, device=DEVICE).top1
        table.add_row(
            row.model, f"{top1:.1f}%", f"{row.parameters / 1e3:.0f} k", f"{row.macs / 1e6:.2f} M",
            f"{row.throughput:.0f}", f"{row.throughput / rows[0].throughput:.2f}x",
        )  # fmt: skip
    return table
