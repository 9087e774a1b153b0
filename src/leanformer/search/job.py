"""One run of `lean`, step by step: time, search, build, distil, fuse, time again.

Every step that is done is written to plan.json in the output folder, so that the same call goes on where it was.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor, nn

from ..core import apply, fuse, save
from ..data.samples import sample_images
from ..speed import load
from .choose import Chooser
from .clock import clock_for
from .cost import Costs, fit_to_whole_models
from .cost_table import measure_costs, whole_models
from .distil import Distiller
from .explore import Explorer
from .final import Finish, why_missed
from .interrupts import sigterm_as_interrupt
from .judge import FITTED_ON, Judge
from .memory import Memory
from .outcome import Lean
from .parts import Parts
from .plan import Plan, space_of
from .progress import Progress, in_words
from .record import Record, about
from .report import page
from .selection import Selection
from .shared import Shared, shareable
from .target import Options, Target

LAST_TURNS = 3
"""The verdict at the end rests on so many times the turns that plans are chosen by."""


class Job:
    """One run of `lean`; each step is skipped where the output folder has its result.

    Args:
        teacher: the trained model.
        parts: images for choosing, training and judging.
        options: how the job is done.
        folder: the output folder; None: nothing is written.
        progress: where people are told.
    """

    def __init__(self, teacher: nn.Module, parts: Parts, options: Options, folder: Path | None, progress: Progress):
        self.teacher = teacher = apply(teacher).eval()  # the caller's own stays on its device and in its mode
        self.parts, self.options, self.progress = parts, options, progress
        self.clock = clock_for(options.place, options.runtime)
        self.space = space_of(teacher, options.methods, options.sizes and not options.shared)
        if not self.space.choices and len(self.space.sizes) == 1:
            raise ValueError(
                "there is nothing to change in this model: no method that was asked for serves it, and it takes images "
                "of one size; lf.optimize alone makes it as fast as it gets"
            )
        if options.shared and not shareable(self.space):
            raise ValueError(
                "no method here takes other shares of the tokens with the same weights, so no weights can be shared"
            )
        self.record = Record(about(teacher, parts, options), folder)
        self.folder, self.entries = folder, self.record.entries
        progress.steps = self.entries.setdefault("steps", progress.steps)
        self.distiller = Distiller(teacher, parts, options, progress)
        steady = dataclasses.replace(self.clock, repeats=LAST_TURNS * self.clock.repeats)
        self.finish = Finish(teacher, self.space, parts, steady, options)
        self.points: list[tuple[Target, dict[str, Any]]] = [(options.target, self.entries)]
        if options.target.curve is not None:
            kept = self.entries.setdefault("curve", [{} for _ in options.target.curve])
            self.points = list(zip(options.target.points(), kept, strict=True))

    def run(self) -> Lean:
        """All steps; an interruption leaves what is done, and says how to go on."""
        self.began = time.perf_counter()
        try:
            with sigterm_as_interrupt():
                self._choose(self._costs())
                made = self._shared() if self.options.shared else map(self._student, range(len(self.points)))
                results = [self._finished(index, student) for index, student in enumerate(made)]
                return self._told(results)
        except KeyboardInterrupt:
            where = f": the same call goes on from what lies in {self.folder}" if self.folder is not None else ""
            self.entries["took"] = self._took()
            self.record.keep()
            self.progress.say(f"interrupted{where}")
            raise

    def _costs(self) -> Costs:
        """The table of costs, scaled to whole models; timed here or read from the folder."""
        if "costs" in self.entries:
            return Costs.from_json(self.entries["costs"])
        models = whole_models(self.teacher, self.space, self.clock)
        with self.progress.step("timing the model as it is", len(models) + self.clock.repeats) as done:
            timed = self.clock.models(models, done)
        own = timed[self.space.sizes[0]]
        with self.progress.step("timing its parts", 100) as done:
            costs = measure_costs(self.teacher, self.space, self.clock, lambda now, of: done(round(100 * now / of)))
        fit_to_whole_models(costs, {name: timing.median for name, timing in timed.items()})
        self.entries["teacher"] = {"seconds": own.median, "spread": own.spread}
        self.entries["costs"] = costs.to_json()
        self.record.keep()
        rate = f", {self.options.place.batch / own.median:,.0f} images a second by {self.options.runtime}"
        counted = self.options.runtime == "macs"
        self.progress.say(f"the model itself: {self.clock.words(own.median)}{'' if counted else rate}")
        return costs

    def _choose(self, costs: Costs) -> None:
        """A plan for each target, all from one search's verdicts."""
        if all("chosen" in entries for _, entries in self.points):
            return
        judge = self._judge()
        few = 64 if judge.device.type == "cpu" else 256
        explorer = Explorer(self.space, costs, judge, few, self.options.seed)

        def keep() -> None:
            self.entries["candidates"], self.entries["judged"] = selection.candidates(), judge.to_json()
            self.record.keep()

        chooser = Chooser(
            self.teacher, self.entries["teacher"]["seconds"], explorer, self.clock, self.distiller, self.options,
            self.progress, Memory(self.entries, keep), self.options.train,
        )  # fmt: skip
        selection = Selection(chooser)
        try:
            (selection.alike if self.options.shared else selection.each)(self.points)
        finally:
            keep()

    def _judge(self) -> Judge:
        def images(size: tuple[int, int]) -> Tensor:
            return self.distiller.view(Plan(size).build(self.teacher))

        def fitting() -> Tensor:
            return self.distiller.fitting(self.teacher, FITTED_ON)

        judge = Judge(self.teacher.to(self.options.place.device), self.space, images, fitting)
        judge.read_json(self.entries.get("judged", []))
        return judge

    def _plan(self, index: int) -> Plan:
        return Plan.from_json(self.points[index][1]["chosen"]["plan"])

    def _student(self, index: int) -> nn.Module | None:
        """The plan's model, calibrated and distilled; None where the folder has the finished one."""
        plan, entries = self._plan(index), self.points[index][1]
        if self._file(index) is not None:
            return None
        if not self.options.train or plan == Plan(self.space.sizes[0]):
            return self.distiller.calibrated(plan)
        self.progress.say(f"distilling {plan}{self._how_long(entries)}")
        student = plan.build(self.teacher.cpu())
        self.distiller.affordable(student, entries)
        self.record.keep()  # the same call must go on with the same number of epochs
        with self.progress.clocked("distilling"):
            student = self.distiller.distilled(student, entries, self._path("train", index))
        if not self._gained({plan: student}, entries):
            student = self.distiller.calibrated(plan)
        self.record.keep()
        return student

    def _gained(self, trained: dict[Plan, nn.Module], entries: dict[str, Any]) -> bool:
        """Whether these models lose less after training than before, all together, on the images for choosing."""
        judge = self._judge()
        before = [judge(plan) for plan in trained]
        after = [judge.verdict(model.to(judge.device), plan.size) for plan, model in trained.items()]
        losses = [fmean(each.loss for each in verdicts) for verdicts in (before, after)]
        agreements = [fmean(each.agreement for each in verdicts) for verdicts in (before, after)]
        gained = losses[1] <= losses[0]
        entries["distilled"] = {
            "before": agreements[0], "after": agreements[1], "loss_before": losses[0], "loss_after": losses[1],
            "kept": "trained" if gained else "fitted",
        }  # fmt: skip
        change = f"agreement {agreements[0]:.1f}% → {agreements[1]:.1f}%"
        if gained:
            self.progress.say(f"trained: {change}")
        else:
            self.progress.say(
                f"training on {len(self.parts.training)} images took the answers further from the model's "
                f"(divergence {losses[0]:.3g} → {losses[1]:.3g}, {change}), so the lean model stays as it was before; "
                "more images would help"
            )
        return gained

    def _how_long(self, entries: dict[str, Any]) -> str:
        """How long the training will take, by the pace of the trials; nothing where there were none."""
        updates, trials = self.distiller.updates(entries), entries.get("trials")
        if not trials or updates is None:
            return ""
        pace = sum(trial["seconds"] for trial in trials) / sum(trial["updates"] for trial in trials)
        return f", about {in_words(pace * updates)}"

    def _shared(self) -> list[nn.Module | None]:
        """The models of all plans with one set of weights; None where the folder has the finished one."""
        wanted = [self._file(index) is None for index in range(len(self.points))]
        models = self._with_shared_weights() if any(wanted) else [None] * len(self.points)
        return [model if each else None for model, each in zip(models, wanted, strict=True)]

    def _with_shared_weights(self) -> Sequence[nn.Module | None]:
        plans = [self._plan(index) for index in range(len(self.points))]
        shared = Shared(self.teacher.cpu(), plans)
        if not self.options.train or shared.name is None:
            return [shared.model(shared.student, plan).eval() for plan in plans]
        self.progress.say(f"distilling one set of weights for {len(plans)} plans, in turn")
        self.distiller.affordable(shared.student, self.entries)
        self.record.keep()
        folder = None if self.folder is None else self.folder / "train"
        with self.progress.clocked("distilling"):
            student = self.distiller.distilled(shared.student, self.entries, folder, shared.objective())
        models = [shared.model(student, plan).eval() for plan in plans]
        if self._gained(dict(zip(plans, models, strict=True)), self.entries):
            return models
        untrained = Shared(self.teacher.cpu(), plans)
        return [untrained.model(untrained.student, plan).eval() for plan in plans]

    def _finished(self, index: int, student: nn.Module | None) -> Lean:
        """The model fused, timed, judged and written; read where the folder has it."""
        (target, entries), plan, file = self.points[index], self._plan(index), self._path("lean", index, ".safetensors")
        if student is None:
            assert file is not None
            model = load(file, fast=False).eval()
        else:
            model = fuse(student.cpu(), verify=bool(plan.shares))
            budget = target.budget(self.entries["teacher"]["seconds"])
            with self.progress.step("timing and judging the result", 4 + self.finish.clock.repeats) as done:
                final = self.finish(plan, model, target, budget, done)
            if file is not None:
                save(model, file)
            missed = {} if final["met"] else {"missed": why_missed(target, entries["chosen"], budget)}
            entries["final"] = {**final, **missed, "took": self._took()}
            self.record.keep()
        if file is not None and self.finish.export_is_missing(file, entries.get("export")):
            with self.progress.step(f"exporting to {self.options.export}"):
                entries["export"] = self.finish.exported(model, file)
            self.record.keep()
        files = () if file is None else (file, *(file.with_name(e["file"]) for e in [entries.get("export")] if e))
        final = entries["final"]
        return Lean(model, plan, final["speedup"], final["met"], self.entries, self.folder, files)

    def _took(self) -> float:
        """Seconds of work until now, those before an interruption among them."""
        return self.entries.get("took", 0.0) + time.perf_counter() - self.began

    def _told(self, results: list[Lean]) -> Lean:
        """What the caller gets, and the page about it."""
        good = [index for index, each in enumerate(results) if each.met] or list(range(len(results)))
        index = max(good, key=lambda index: results[index].speedup)
        shown, (target, entries) = results[index], self.points[index]
        if self.options.target.curve is not None:
            told = ("chosen", "final", "training", "distilled")
            self.entries |= {name: entries[name] for name in told if name in entries}
            self.record.keep()
        if self.folder is not None:
            self._write_page(shown, target)
        if self.options.target.curve is None:
            return shown
        return dataclasses.replace(shown, met=all(each.met for each in results), curve=tuple(results))

    def _write_page(self, shown: Lean, target: Target) -> None:
        """The page about the model that is shown, as if its target had been the only one, and the curve."""
        assert self.folder is not None
        alone = {**self.entries["about"], "target": dataclasses.asdict(target)}
        few = sample_images(shown.model, self.parts.judging, 4, split="val", seed=self.options.seed)
        written = page({**self.entries, "about": alone}, shown.plan, shown.model, self.teacher, few)
        if self.options.target.curve is not None:
            written.heading("The curve")
            written.table(curve_rows(self.points))
        written.save(self.folder / "report.html")

    def _path(self, name: str, index: int, suffix: str = "") -> Path | None:
        """A file or folder of one target: plain for one target, with its speed-up for one of a curve."""
        target = self.points[index][0]
        which = "" if self.options.target.curve is None else f"_{target.speedup:g}x"
        return None if self.folder is None else self.folder / f"{name}{which}{suffix}"

    def _file(self, index: int) -> Path | None:
        """The finished model's file, where an earlier run left it."""
        file = self._path("lean", index, ".safetensors")
        return file if file is not None and file.is_file() and "final" in self.points[index][1] else None


def curve_rows(points: list[tuple[Target, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each target of a curve and what is known of it, for people."""
    rows = []
    for target, entries in points:
        final, chosen = entries["final"], entries["chosen"]
        row = {"target": f"{target.speedup:g} times", "plan": str(Plan.from_json(chosen["plan"])),
               "measured": f"{final['speedup']:.2f} times", "met": "yes" if final["met"] else "no",
               "agreement, %": final["agreement"]}  # fmt: skip
        rows.append(row | ({"top-1, %": final["top1"]} if "top1" in final else {}))
    return rows
