"""The trained teachers of a study, and how one run of a study is trained."""

import copy
import dataclasses
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanformer.backbones import create, load, with_head
from leanformer.core import card_json, card_of, has_card
from leanformer.data import Data
from leanformer.train import Recipe, Result, evaluate, fit, read_run

from .file_lock import file_lock, read_row, write_row
from .scale import Scale
from .student import Student, Study

EPOCHS_BETWEEN_CHECKPOINTS = 4


@dataclasses.dataclass(frozen=True)
class Masters:
    """The trained teachers of a study, each trained once: when a row needs it, or shared out before all rows."""

    study: Study
    scale: Scale
    train: Data
    val: Data
    runs: Path
    given: Mapping[str, Path]
    known: dict[tuple[str, int], tuple[nn.Module, float]] = dataclasses.field(default_factory=dict)

    def get(self, name: str, seed: int) -> tuple[nn.Module, float]:
        """A trained teacher and its top-1; "" is the study's own."""
        if (name, seed) not in self.known:
            self.known[name, seed] = self._open(name, seed)
        return self.known[name, seed]

    def of(self, student: Student, seed: int) -> dict[str, nn.Module]:
        """The teachers of a row by the names under which its objective meets them."""
        own = dict.fromkeys(student.teachers, self.get(student.made_from, seed)[0])
        return own | {role: self.get(name, seed)[0] for role, name in student.others.items()}

    def share(self, runs: Iterable[tuple[Student, int]]) -> None:
        """Train the teachers of these runs that no other process is training: each takes another one, none waits.

        One that fails ends nothing here: the rows that need it tell of it, and the others are worth having.

        Args:
            runs: Students, each with its seed.
        """
        wanted = dict.fromkeys((name, seed) for student, seed in runs for name in _teachers_of(student))
        for name, seed in wanted:
            if name in self.given or (name, seed) in self.known:
                continue
            with file_lock(self._folder(name, seed)) as mine:
                if not mine or read_row(self._folder(name, seed)) is not None:
                    continue
                try:
                    self.known[name, seed] = self._opened(name, seed)
                except Exception:
                    traceback.print_exc()

    def _folder(self, name: str, seed: int) -> Path:
        return self.runs / (f"teacher-{name}-{seed}" if name else f"teacher-{seed}")

    def _open(self, name: str, seed: int) -> tuple[nn.Module, float]:
        """Another process that needs the same teacher waits until it is trained."""
        with file_lock(self._folder(name, seed), wait=True):
            return self._opened(name, seed)

    def _opened(self, name: str, seed: int) -> tuple[nn.Module, float]:
        """A teacher whose folder this process holds."""
        folder = self._folder(name, seed)
        model = self._given(name) if name in self.given else self._trained(name, folder, seed)
        model = model.to(self.scale.torch_device)
        return model, self._top1(model, folder, str(self.given.get(name, "")))

    def _top1(self, model: nn.Module, folder: Path, file: str) -> float:
        """What the folder knows of a teacher; that of other images, or of another file, is refused."""
        facts = self.scale.facts()
        mine = {key: facts[key] for key in ("data", "images", "first_classes")} | {"file": file}
        row = read_row(folder)
        if row is None:
            row = {"top1": accuracy(model, self.val, self.scale), **mine}
            write_row(folder, row)
        _refuse_other(f"the teacher in {folder}", {key: row.get(key, mine[key]) for key in mine}, mine)
        return row["top1"]

    def _given(self, name: str) -> nn.Module:
        """A leanformer checkpoint; or a file of weights for the model that the study would have trained."""
        file, classes = self.given[name], self.val.num_classes or 1000
        if not name or has_card(file):
            return load(file)
        untrained = self.study.untrained(name, 1000)
        card = card_of(untrained)
        untrained.load_state_dict(create(card.backbone, file, **card.arguments).state_dict())
        return untrained if classes == 1000 else with_head(untrained, classes, self.val.classes)

    def _trained(self, name: str, folder: Path, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        recipe = recipe_of(self.study, self.scale, self.scale.teacher_epochs)
        if self.study.teacher_learning_rate is not None:
            recipe = recipe.replace(learning_rate=self.study.teacher_learning_rate)
        untrained = self.study.untrained(name, self.val.num_classes or 1000, self.val.classes)
        if not (folder / "model.safetensors").exists():
            train_run(copy.deepcopy(untrained), recipe, self.scale, self.train, self.val, folder, seed)
        model = load(folder / "model.safetensors")
        _refuse_another(model, folder, untrained, recipe)
        untrained.load_state_dict(model.state_dict())  # a CNN's card does not tell its image size
        return untrained.eval()


def _teachers_of(student: Student) -> list[str]:
    """The names of the teachers without which there is no row of this student."""
    return list(dict.fromkeys((student.made_from, *student.others.values())))


def _refuse_another(model: nn.Module, folder: Path, untrained: nn.Module, recipe: Recipe) -> None:
    """The teacher of an earlier command serves this one only if this one would train the same."""
    asked = recipe.to_json() | card_json(untrained)["arguments"]
    told = Recipe.from_json(read_run(folder)["recipe"]).to_json() | card_json(model)["arguments"]
    _refuse_other(f"the teacher in {folder}", told, asked)


def _refuse_other(what: str, told: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    other = [name for name in sorted(asked.keys() | told.keys()) if asked.get(name) != told.get(name)]
    if other:
        found = ", ".join(f"{name}={told.get(name)}, not {asked.get(name)}" for name in other)
        raise ValueError(f"{what} was made with {found}: give another folder with --runs")


def train_run(
    model: nn.Module, recipe: Recipe, scale: Scale, train: Data, val: Data, folder: Path, seed: int,
    teachers: dict[str, nn.Module] | None = None, objective: str | None = None,
) -> Result:  # fmt: skip
    """Train one model in a folder of its own, going on where an earlier command stopped."""
    result = fit(
        model, recipe=recipe, data=train, val=val, teacher=teachers or None, objective=objective, output=folder,
        resume=True, seed=seed, device=str(scale.torch_device), precision=scale.precision, compile=scale.compile,
        evaluate_every=max(1, recipe.epochs), calibrate=0,  # the study's own rows say what is calibrated
        save_every=EPOCHS_BETWEEN_CHECKPOINTS * (len(train) // recipe.batch_size),
    )  # fmt: skip
    if not result.finished:  # asked to stop: the other runs of the queue are not begun
        raise SystemExit(f"stopped; the same command goes on from {folder}")
    for leftover in ("checkpoint.pt", "checkpoint.previous.pt"):
        (folder / leftover).unlink(missing_ok=True)  # many runs, each many times the size of its model
    return result


def recipe_of(study: Study, scale: Scale, epochs: int) -> Recipe:
    """The study's recipe for a run of so many epochs at this scale."""
    rate = {} if scale.learning_rate is None else {"learning_rate": scale.learning_rate}
    return study.recipe.replace(
        epochs=epochs, warmup_epochs=min(study.recipe.warmup_epochs, epochs / 5), batch_size=scale.batch_size, **rate
    )


def accuracy(model: nn.Module, val: Data, scale: Scale) -> float:
    """Top-1 of a model, which stays as it is."""
    return evaluate(copy.deepcopy(model), val, device=str(scale.torch_device), precision=scale.precision).top1
