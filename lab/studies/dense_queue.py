"""Training of the rows of the study of dense tasks: one queue, which several processes may work off.

A row is trained in a folder of its own, held by one process. An adopted row waits for the row of its unchanged
backbone. A row that fails is written down as such and tried again by the next command.
"""

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

import leanformer as lf
from leanformer.data import Scenes, open_scenes
from leanformer.data.draws import seed_all
from leanformer.measure import commit, console, count
from leanformer.train import Recipe

from .dense_album import in_memory
from .dense_memory import DetectionInMemory, SegmentationInMemory
from .dense_rows import Builder, Row, few_regions
from .file_lock import file_lock, read_row, write_row

PAUSE = 1.0
"""Seconds between two looks at what other processes have finished."""
LAST_ONLY = 10**9
"""Epochs between evaluations, so that only the last one is evaluated."""
AT_A_TIME = 32
"""Pictures at a time in evaluation."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all rows are trained with."""

    builder: Builder
    runs: Path
    device: torch.device
    pets: Path | None
    camvid: Path | None
    classes: str = "species"
    epochs: int = 6
    camvid_epochs: int = 30
    batch_size: int = 32
    camvid_batch_size: int = 16
    learning_rate: float = 3e-4
    scratch_learning_rate: float = 6e-4
    seed: int = 0
    images: int | None = None
    """Only so many pictures to learn from, and as many to be judged by."""

    def folder(self, row: Row) -> Path:
        """The folder of a row's run."""
        return self.runs / f"{row.label}, {self.epochs_of(row)} epochs, seed {self.seed}"

    def model_file(self, row: Row) -> Path:
        """Where a row leaves its trained model."""
        return self.folder(row) / "run" / "model.safetensors"

    def epochs_of(self, row: Row) -> int:
        """Epochs of a row; an adopted one has half as many as the others."""
        whole = self.epochs if row.detects else self.camvid_epochs
        return max(1, whole // 2) if row.adopted else whole

    def recipe(self, row: Row) -> Recipe:
        """How a row is trained."""
        make, size = (lf.recipes.pets, self.batch_size) if row.detects else (lf.recipes.camvid, self.camvid_batch_size)
        trained = row.adopted or self.builder.trained(row)
        rate = self.learning_rate if trained else self.scratch_learning_rate
        return make(epochs=self.epochs_of(row), batch_size=size, learning_rate=rate)

    def task(self, row: Row) -> Any:
        """What a row learns."""
        return DetectionInMemory() if row.detects else SegmentationInMemory(size=self.builder.sizes.segmentation)

    def scenes(self, row: Row, test: bool = False) -> Scenes:
        """The files that a row learns from, or those of the test split.

        Args:
            row: the row.
            test: whether the test split is wanted.
        """
        folder = self.pets if row.detects else self.camvid
        if folder is None:
            data = "Oxford Pets: give its folder by --pets" if row.detects else "CamVid: give its folder by --camvid"
            raise ValueError(f"{row.kind} is trained on {data}")
        if row.detects:
            word = "pets" if self.classes == "breeds" else "pets_species"
            return open_scenes(f"{word}:{folder}", "val" if test else "train", "masks")
        return open_scenes(f"camvid:{folder}", "test" if test else "train", "label_map")

    @cached_property
    def _decoded(self) -> dict[bool, tuple[Scenes, Scenes]]:
        return {}

    def data(self, row: Row) -> tuple[Scenes, Scenes]:
        """What a row learns from, and the test split that it is judged by; decoded once."""
        if row.detects not in self._decoded:
            kept = self.runs / "decoded"
            learnt, judged = (in_memory(self.scenes(row, test), self.images, kept) for test in (False, True))
            self._decoded[row.detects] = (learnt, judged)
        return self._decoded[row.detects]


def work_off(rows: Sequence[Row], plan: Plan, until: float) -> None:
    """Train all rows that no other process trains or has trained; the first ones first.

    Args:
        rows: the rows, in their order.
        plan: what they are trained with.
        until: by `time.monotonic`, when no further row is begun.
    """
    again = {row for row in rows if "failed" in (read_row(plan.folder(row)) or {})}
    for row in rows:
        if row.adopted and row.unchanged not in rows and not plan.model_file(row.unchanged).is_file():
            raise ValueError(f"'{row.label}' starts from '{row.unchanged.label}', which is not there: add it to --only")
    while time.monotonic() < until:
        waiting = False
        for row in rows:
            origin = read_row(plan.folder(row.unchanged)) if row.adopted else {}
            if origin is None:
                waiting = True  # another process trains it
            elif "failed" not in origin and _train_if_free(row, plan, again):
                break
        else:
            if not waiting:
                return
            time.sleep(PAUSE)


def _train_if_free(row: Row, plan: Plan, again: set[Row]) -> bool:
    """Train a row if no process has; False where there was nothing to do."""
    folder = plan.folder(row)
    with file_lock(folder) as mine:
        known = read_row(folder)
        if not mine or (known is not None and row not in again):
            return False
        again.discard(row)
        began = time.perf_counter()
        try:
            found: dict[str, Any] = train(row, plan)
        except Exception as error:  # the other rows do not depend on it
            traceback.print_exc()
            found = {"model": row.label, "failed": f"{type(error).__name__}: {error}"[:500]}
        found["seconds"] = round(time.perf_counter() - began, 1)
        write_row(folder, found)
        told = ", ".join(f"{name} {value:.1f}" for name, value in found.get("figures", found).items() if name in SHOWN)
        console().print(f"{row.label}: {found.get('failed', told)}, {found['seconds']:.0f} s", highlight=False)
        return True


SHOWN = ("ap", "ap50", "mask_ap", "miou", "pixel_accuracy")


def train(row: Row, plan: Plan) -> dict[str, Any]:
    """Train and judge a row; returns what the result file says of it.

    Args:
        row: the row.
        plan: what it is trained with.
    """
    learnt, judged = plan.data(row)
    seed_all(plan.seed, "model")
    teacher = few_regions(lf.load(plan.model_file(row.unchanged)).eval()) if row.adopted else None
    if teacher is not None:
        model = plan.builder.adopted(row, teacher)
    else:
        model = plan.builder.model(row, learnt.classes, list(learnt.entries), plan.device)
    recipe, cuda = plan.recipe(row), plan.device.type == "cuda"
    result = lf.tasks.fit(
        model, recipe=recipe, data=learnt, val=judged, teacher=teacher, task=plan.task(row),
        seed=plan.seed, device=str(plan.device), precision="bf16" if cuda else "no", workers=0, log_every=50,
        evaluate_every=LAST_ONLY, save_every=LAST_ONLY, evaluation_batch_size=AT_A_TIME if cuda else 2, quiet=True,
    )  # fmt: skip
    if not result.finished or result.evaluation is None:
        raise SystemExit(f"'{row.label}' was stopped by a signal")
    plan.model_file(row).parent.mkdir(exist_ok=True)
    lf.save(result.model, plan.model_file(row))  # no run folder: a checkpoint takes longer to write than a row to judge
    return {
        **_about(row, plan, recipe), "learnt_from": len(learnt), "judged_by": len(judged), "data": learnt.name,
        "left_out": dict(learnt.left_out + judged.left_out), "figures": result.evaluation.summary(),
        "before_training": result.start or {}, "training_seconds": round(result.seconds, 1),
        **_counted(result.model, row, plan), "commit": commit(),
    }  # fmt: skip


def _about(row: Row, plan: Plan, recipe: Recipe) -> dict[str, Any]:
    """What a row is, and how it is trained."""
    sizes = plan.builder.sizes
    return {
        "model": row.label, "kind": row.kind, "backbone": row.backbone, "method": row.method, "adopted": row.adopted,
        "start": plan.builder.start(row), "classes": plan.classes if row.detects else "camvid",
        "size": sizes.detection if row.detects else list(sizes.segmentation), "epochs": recipe.epochs,
        "batch_size": recipe.batch_size, "learning_rate": recipe.learning_rate, "seed": plan.seed,
    }  # fmt: skip


def _counted(model: nn.Module, row: Row, plan: Plan) -> dict[str, float]:
    """Parameters and MACs, fused, for a picture of the size that it is judged at."""
    side = plan.builder.sizes.detection
    size = (3, side, side) if row.detects else tuple(plan.data(row)[1].entries[0].image.shape)
    counted = count(lf.fuse(model, verify=False), size)
    return {"parameters": counted.parameters, "macs": counted.macs}
