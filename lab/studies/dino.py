"""Pre-training without labels: a ViT by DINO, with and without idle channels, and what is made of it afterwards.

    python -m lab study dino --data pack:tiny_imagenet --seeds 0 1 --teacher-epochs 15 --epochs 3 --batch-size 256 \\
        --precision bf16 --compile

The ViT is small (192 channels, 6 blocks, 64 patches of 8 x 8 pixels) and two local crops are shown instead of six, so
that minutes are enough to see features become better.

Rows: the features of each backbone over the epochs of its pre-training, by 20 neighbours and by a linear classifier;
at the end fused as well. Then token reduction on the trained ViT, before and after distillation of its features, which
reads no label. The speed of each fused model over the ViT's, in the same form, stands beside it (`--measure`).
`--teacher-epochs` are those of DINO, `--epochs` those of the distillation. A row that is in the result file is not made
again, a run that was cut short goes on, and several processes may share the file, each with an `--only` of its own.
"""

import contextlib
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import leanformer as lf
from leanformer.backbones import create, load
from leanformer.core import Method, apply, fold, fuse, parse_options, write_atomically
from leanformer.data import Data
from leanformer.measure import choose, commit, compare, console, count, record, shared_kernels, write_result
from leanformer.methods import EViT, RePa, ToMe
from leanformer.tasks import dino
from leanformer.train import extract_features, fit, knn_accuracy, linear_probe

from ..tables import as_table
from .file_lock import file_lock
from .rows import SPEEDS, has_row, rows_in
from .scale import Scale

PUBLISHED_FOR_OURS = lf.recipes.PUBLISHED["dino_tiny_images"]
VIT: dict[str, Any] = {"embed_dim": 192, "depth": 6, "num_heads": 3}
OWN = "dino:prototypes=2048,hidden=512,bottleneck=128,local_crops=2"
"""DINO's settings where they are not the recipe's: fewer crops and a smaller head."""
PRE_TRAINED: dict[str, tuple[Method, ...]] = {"ViT": (), "RePa 0.5": (RePa(idle_ratio=0.5),)}
AFTERWARDS: dict[str, Method] = {"EViT 0.7": EViT.finetune(keep_rate=0.7), "ToMe 0.9": ToMe(keep_rate=0.9)}
MARKS = 5
"""How often features are judged during pre-training, the end included."""
NEIGHBOURS = 20
PROBE_EPOCHS = 30
"""Of the linear classifier: six of them are trained for each backbone."""
LOG_EVERY = 50
"""Updates: the device is waited for as often."""
ON_GPU = 2048
"""Images at a time when features are read there."""
SHOWN = ("model", "seed", "epoch", "knn", "linear", "speedup", "parameters", "macs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DinoStudy:
    """What all rows share.

    Attributes:
        scale: data, epochs, seeds, device.
        arguments: of the backbone, instead of the study's own.
        settings: of DINO, instead of the recipe's own.
        output: the result file.
        runs: the folder of the run folders.
        timed: images a batch and repeats when the speed is measured.
        measure: after training, only that, or never.
    """

    scale: Scale
    arguments: dict[str, Any]
    settings: str
    output: Path
    runs: Path
    timed: tuple[int, int]
    measure: str = "after"

    @classmethod
    def of(
        cls, scale: Scale, arguments: tuple[str, ...], output: Path, runs: Path, timed: tuple[int, int], measure: str
    ) -> "DinoStudy":
        """The study as the command line asks for it.

        Args:
            scale: data, epochs, seeds, device.
            arguments: of the backbone as name=value, and DINO's own settings as dino=setting=value,….
            output: the result file.
            runs: the folder of the run folders.
            timed: images a batch and repeats when the speed is measured.
            measure: after training, only that, or never.
        """
        own = [word.removeprefix("dino=") for word in arguments if word.startswith("dino=")]
        given = parse_options(tuple(word for word in arguments if not word.startswith("dino=")))
        settings = ":".join(["dino", *own[-1:]])
        return cls(
            scale=scale, arguments=given, settings=settings, output=output, runs=runs, timed=timed, measure=measure
        )

    def run(self, only: str = "") -> list[dict[str, Any]]:
        """Make what is missing and return all rows.

        Args:
            only: only the models whose name contains this text; several texts are parted by |.
        """
        chosen = choose([*PRE_TRAINED, *AFTERWARDS], only)
        if self.measure != "only":
            with shared_kernels():
                self._train(chosen)
        if self.measure != "never":
            self._time(chosen)
        return rows_in(self.output)

    def _train(self, chosen: list[str]) -> None:
        train, val = self.scale.data_sets()
        for seed in self.scale.seeds:
            for name in PRE_TRAINED:
                if name in chosen or (name == "ViT" and not AFTERWARDS.keys().isdisjoint(chosen)):
                    self._pre_train(name, seed, train, val)
            for name in AFTERWARDS:
                if name in chosen:
                    self._afterwards(name, seed, train, val)

    def _pre_train(self, name: str, seed: int, train: Data, val: Data) -> None:
        """A row at each mark; the run goes on from mark to mark with the rates of the whole of it."""
        folder, epochs = self._folder(name, seed), self.scale.teacher_epochs
        marks = sorted({max(1, round(epochs * part / MARKS)) for part in range(1, MARKS + 1)})
        for mark in [0, *marks]:
            if self._known(model=f"{name}, DINO", seed=seed, epoch=mark):
                continue
            if mark == 0:
                model = self._backbone(name, seed)
                self._add({"model": f"{name}, DINO", "seed": seed, "epoch": 0, **self._judged(model, train, val)})
                continue
            model, seconds = self._trained(name, seed, mark, train)
            facts: dict[str, Any] = {"train_seconds": round(seconds, 1)}
            if mark == epochs:
                fused = fuse(model, verify=False)
                size = count(fused)
                facts |= {"fused_knn": self._judged(fused, train, val, linear=False)["knn"]}
                facts |= {"parameters": size.parameters, "macs": size.macs}
            row = {"model": f"{name}, DINO", "seed": seed, "epoch": mark, **self._judged(model, train, val)}
            self._add({**row, **facts, "run": folder.name})

    def _backbone(self, name: str, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        made = {**PUBLISHED_FOR_OURS.arguments, **VIT, **self.arguments}
        return apply(create(PUBLISHED_FOR_OURS.model, **made), *PRE_TRAINED[name])

    def _trained(self, name: str, seed: int, mark: int, train: Data) -> tuple[nn.Module, float]:
        """DINO's teacher after so many epochs, and the seconds that they took."""
        scale, epochs = self.scale, self.scale.teacher_epochs
        rate = {} if scale.learning_rate is None else {"learning_rate": scale.learning_rate}
        recipe = PUBLISHED_FOR_OURS.recipe.replace(
            epochs=epochs, warmup_epochs=min(10, epochs / 10), batch_size=scale.batch_size, drop_path=0.0, **rate
        )
        per_epoch = len(train) // scale.batch_size
        result = dino.fit(
            self._backbone(name, seed), recipe=recipe, data=train, dino=self._config, output=self._folder(name, seed),
            resume=True, seed=seed, max_updates=mark * per_epoch, save_every=epochs * per_epoch, **self._how(),
        )  # fmt: skip
        if not result.finished:
            raise SystemExit(f"stopped; the same command goes on from {result.folder}")
        if result.updates > mark * per_epoch:
            raise ValueError(
                f"{result.folder} is beyond epoch {mark}, which has no row: give another --runs or --output"
            )
        assert result.ema is not None
        return result.ema, result.seconds

    def _afterwards(self, name: str, seed: int, train: Data, val: Data) -> None:
        """Two rows: a method on the trained ViT as it is, and after distillation of the features."""
        scale, missing = self.scale, [e for e in (0, self.scale.epochs) if not self._known(name, seed, e)]
        if not missing:
            return
        teacher = load(self._folder("ViT", seed) / "ema.safetensors")
        student = apply(teacher, AFTERWARDS[name])
        facts: dict[str, Any] = {"model": name, "seed": seed}
        if 0 in missing:
            self._add({**facts, "epoch": 0, **self._judged(student, train, val)})
        if scale.epochs in missing and scale.epochs:
            recipe = lf.recipes.finetune(
                epochs=scale.epochs, batch_size=scale.batch_size, learning_rate=1e-4, ema=None, auto_augment=None,
                mixup=0.0, cutmix=0.0,
            )  # fmt: skip
            result = fit(
                student, recipe=recipe, data=train, teacher=teacher, output=self._folder(name, seed), resume=True,
                seed=seed, save_every=scale.epochs * (len(train) // scale.batch_size), **self._how(),
            )  # fmt: skip
            if not result.finished:
                raise SystemExit(f"stopped; the same command goes on from {result.folder}")
            row = {**facts, "epoch": scale.epochs, **self._judged(result.model, train, val)}
            self._add({**row, "train_seconds": round(result.seconds, 1)})

    @functools.cached_property
    def _config(self) -> dino.Config:
        """DINO's settings: the recipe's, the study's, those that were given."""
        return dino.Config().with_text(PUBLISHED_FOR_OURS.task).with_text(OWN).with_text(self.settings)

    def _how(self) -> dict[str, Any]:
        """How every run is carried out."""
        scale = self.scale
        return {"device": str(scale.torch_device), "precision": scale.precision, "compile": scale.compile,
                "evaluate_every": 0, "log_every": LOG_EVERY}  # fmt: skip

    def _judged(self, model: nn.Module, train: Data, val: Data, linear: bool = True) -> dict[str, float]:
        device = self.scale.torch_device
        how: dict[str, Any] = {"device": str(device), "precision": self.scale.precision}
        how |= {"batch_size": ON_GPU} if device.type == "cuda" else {}
        known, asked = (extract_features(model, part, **how) for part in (train, val))
        found = {"knn": knn_accuracy(known, asked, min(NEIGHBOURS, len(known.labels))).top1}
        if not linear:
            return found
        return found | {"linear": linear_probe(known, asked, epochs=PROBE_EPOCHS).top1, "linear_epochs": PROBE_EPOCHS}

    def _time(self, chosen: list[str]) -> None:
        """Time the models, fused and with fresh weights, in turn with the ViT; their rows get the speed-ups."""
        batch, repeats = self.timed
        methods = PRE_TRAINED | {name: (method,) for name, method in AFTERWARDS.items()}
        vit = self._backbone("ViT", 0)
        models = {name: fold(apply(vit, *methods[name])) for name in ("ViT", *chosen)}
        gpu = self.scale.torch_device.type == "cuda"
        timed = compare(
            models, device=self.scale.torch_device, dtypes=["bfloat16" if gpu else "float32"], batches=[batch],
            repeats=repeats, modes=["compiled", "optimised"] if gpu else ["eager"], optimize=lf.optimize,
        ).rows  # fmt: skip
        own = {row.mode: row.throughput for row in timed if row.model == "ViT"}
        found: dict[str, Any] = {
            name: {"speedup": {}, "images_per_second": {}, "speed_batch": batch} for name in models
        }
        for row in timed:
            found[row.model]["speedup"][row.mode] = row.throughput / own[row.mode]
            found[row.model]["images_per_second"][row.mode] = round(row.throughput)
        with self._alone():
            told = self._speeds() | found
            write_atomically(self.runs / SPEEDS, lambda name: Path(name).write_text(json.dumps(told)))
            rows = [{**row, **told.get(_name(row), {})} for row in rows_in(self.output)]
            if rows:
                write_result(record("study dino", rows, self.scale.torch_device), self.output)

    def _speeds(self) -> dict[str, Any]:
        """What was measured for each model, also before its rows were made."""
        file = self.runs / SPEEDS
        return json.loads(file.read_text()) if file.exists() else {}

    def _alone(self) -> contextlib.AbstractContextManager[bool]:
        """While the result file is changed."""
        return file_lock(self.runs / "result", wait=True)

    def _folder(self, name: str, seed: int) -> Path:
        return self.runs / f"{name.replace(' ', '-')}-{seed}"

    def _known(self, model: str, seed: int, epoch: int) -> bool:
        wanted = {"model": model, "seed": seed, "epoch": epoch}
        return has_row(rows_in(self.output), {**wanted, **self._facts(wanted)})

    def _facts(self, row: dict[str, Any]) -> dict[str, Any]:
        """What a row must share with another one to be the same run; those of the distillation are not DINO's."""
        facts = {**self.scale.facts(), "teacher_epochs": self.scale.teacher_epochs}
        facts |= {"backbone": {**VIT, **self.arguments}, "dino": self._config.text()}
        return {key: fact for key, fact in facts.items() if key != "epochs" or _name(row) in AFTERWARDS}

    def _add(self, row: dict[str, Any]) -> None:
        told = {"command": self.scale.command_of(_name(row), row["seed"]), "commit": commit()}
        with self._alone():
            rows = [*rows_in(self.output), {**row, **self._speeds().get(_name(row), {}), **self._facts(row), **told}]
            write_result(record("study dino", rows, self.scale.torch_device), self.output)


def study_dino(study: DinoStudy, only: str) -> None:
    """Run the study and print its table.

    Args:
        study: what to run.
        only: only the models whose name contains this text.
    """
    rows = ({key: row[key] for key in SHOWN if row.get(key) is not None} for row in study.run(only))
    lines = [{key: _cell(cell) for key, cell in row.items()} for row in rows]
    console().print(as_table("features without labels", lines, left=("model",)))


def _name(row: dict[str, Any]) -> str:
    """The model of a row, as it is chosen by."""
    return row["model"].partition(",")[0]


def _cell(cell: Any) -> str:
    if isinstance(cell, dict):
        return ", ".join(f"{each:.2f} {name}" for name, each in cell.items())
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
