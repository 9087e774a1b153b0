"""The training loop.

    update u:  rates, methods' settings  →  micro-batches: teachers, student, objective, backward  →  clip, step, EMA

Every random number of an update comes from (seed, u), so a run that was killed and resumed from any checkpoint gives
the weights of one that was not, bit for bit on a CPU.
"""

import contextlib
import copy
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ..core import Objective, card_of
from ..data.batches import Batch, Plan, Stretch
from ..data.draws import seed_all
from .checkpoint import write_checkpoint
from .evaluation import Conditions, Evaluation
from .journal import Journal
from .learner import Learner, set_drop_path
from .ledger import Ledger, check_finite
from .optimise import Rates, make_average, make_optimizer, parameter_groups
from .parallel import accelerator_for, filled, spread, whole_state, without_sync
from .recipe import Recipe
from .result import Result
from .runs import Settings
from .signals import Signals
from .start import begin, tell
from .state import snapshot
from .sync_norm import synchronise
from .task import Task

STEADY_AFTER = 20
"""Updates without a change of the methods' settings before the compiled student is used (again)."""
SKIPS = 10
"""Updates in a row with a loss that is not finite before `nonfinite=skip` gives up."""


class Run:
    """One training run: everything between the first update and the last."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        settings: Settings,
        data: Any,
        val: Any,
        teachers: dict[str, nn.Module],
        objective: Objective,
        folder: Path | None,
        accelerator: Accelerator | None = None,
        fresh: bool = False,
        task: Task = Task(),  # noqa: B008
    ):
        data = objective.data_form(data, settings.seed)
        formed = {name: objective.teacher_form(name, teacher) for name, teacher in teachers.items()}
        self.model, self.recipe, self.settings = model, recipe, settings
        self.data, self.val, self.folder, self.fresh = data, val, folder, fresh
        self.accelerator = accelerator or accelerator_for(settings, folder)
        self.device, self.main = self.accelerator.device, self.accelerator.is_main_process
        self.task, self.config, self.methods = task, task.view(model), card_of(model).methods
        self.plan = Plan(
            len(data), recipe.batch_size, settings.seed, recipe.repeats, settings.accumulate,
            self.accelerator.num_processes, self.accelerator.process_index,
        )  # fmt: skip
        self.total = (recipe.epochs + recipe.cooldown_epochs) * self.plan.updates_per_epoch
        self.stop = min(self.total, settings.max_updates or self.total)
        self.mix = task.mixing(recipe, self.plan, model, data, self.config)
        self.update, self.seconds, self.skipped = 0, 0.0, 0
        self.moment: dict[str, float] = {}
        self.changed, self.ledger = -STEADY_AFTER, Ledger()
        self._prepare(teachers, formed, objective)

    def _prepare(self, given: dict[str, nn.Module], teachers: dict[str, nn.Module], objective: Objective) -> None:
        recipe, settings = self.recipe, self.settings
        if recipe.drop_path is not None:
            set_drop_path(self.model, recipe.drop_path, recipe.drop_path_grows)
        for module in (self.model, objective, *given.values(), *teachers.values()):
            module.to(self.device)
        self.start = begin(self, given) if self.fresh else None
        self.teachers = self.task.teachers(teachers, objective.teacher_taps(), self.config, settings.compile)
        self.average = objective.average(self.model) or make_average(self.model, recipe)
        self.empty = copy.deepcopy(self.model) if settings.shard else None
        several = settings.sync_bn and self.accelerator.num_processes > 1
        self.plain_norms = synchronise(self.model) if several else {}
        self.objective_norms = synchronise(objective) if several else {}  # of models that it keeps itself
        self.learner = Learner(self.model, objective, settings.compile, self.task.answer)
        self.wrapped = spread(self.learner, self.average and self.average.module, settings, self.accelerator)
        self.clipped = list(self.wrapped.parameters())  # looked up once: a model has hundreds of modules
        optimizer = make_optimizer(parameter_groups(self.model, objective, recipe), recipe, self.device)
        self.bare_optimizer, self.optimizer = optimizer, self.accelerator.prepare_optimizer(optimizer)
        self.rates = Rates(self.optimizer, recipe, self.plan.updates_per_epoch)  # type: ignore[arg-type]
        for method in self.methods if self.average else ():
            method.advance(self.average.module, math.inf)  # type: ignore[union-attr]

    def train(self, notes: Iterable[str] = ()) -> Result:
        """Run the remaining updates, evaluate, save; the notes are logged first."""
        quiet = self.settings.quiet or not self.main
        self.journal = Journal(self.folder if self.main else None, self.stop, self.update, quiet, self.accelerator)
        for note in notes:
            self.journal.event(note)
        if self.update:
            self.journal.event("resumed", after_update=self.update)
        signals = Signals()
        try:
            with signals:
                evaluations = self._updates(signals)
        finally:
            self.journal.close()
            self.learner.close()
            self.teachers.close()
        result = self._finish(evaluations)
        if result.finished:
            signals.hand_on()
        return result

    def _updates(self, signals: Signals) -> dict[str, Evaluation]:
        stretch = self.stretch(self.update, self.stop)
        batches = self.task.batches(self.data, self.recipe, self.config, stretch)
        evaluations: dict[str, Evaluation] = {}
        every = self.settings.save_every or self.plan.updates_per_epoch
        self.started = time.perf_counter()
        self.wrapped.train(not self.recipe.frozen_statistics)
        if self.fresh and self.start is not None:
            tell(self)
        self.logged, self.logged_update = time.perf_counter(), self.update
        while self.update < self.stop:
            self._one_update(batches)
            last, logs = self.update == self.stop, self.update % self.settings.log_every == 0
            asked = (logs or last or self.accelerator.num_processes == 1) and signals.agreed(self.accelerator)
            if logs or last or asked or self.update % every == 0:
                self._log()
            if self.update % self.plan.updates_per_epoch == 0 or last:
                evaluations = self._end_epoch(last)
            if self.update % every == 0 or last or asked:
                self.save()
            if asked and not last:
                self.journal.event("stopped by a signal", after_update=self.update)
                break
        if not evaluations and self.update == self.stop and self.val is not None:
            evaluations = self._evaluate()
        return evaluations

    def _one_update(self, batches: Iterator[Batch]) -> None:
        epoch = self.update / self.plan.updates_per_epoch
        self._set_moment(epoch)
        self.rates.set(self.update)
        groups, per_epoch = self.bare_optimizer.param_groups, self.plan.updates_per_epoch
        self.learner.objective.advance(self.update, self.total, per_epoch, groups)
        parts: list[dict[str, Tensor]] = []
        for part in range(self.settings.accumulate):
            # what is drawn for the batch too: a checkpoint holds the generators of one process alone
            seed_all(self.settings.seed, "batch", self.update, part, self.accelerator.process_index)
            batch = next(batches)
            for name in batch.damaged:
                self.journal.once("unreadable image", name=name)
                self.data.damage.add(name)
            seed_all(self.settings.seed, "update", self.update, part, self.accelerator.process_index)
            parts.append(self._backward(self.mix(batch), epoch, last=part == self.settings.accumulate - 1))
        names = tuple(parts[0])
        terms = torch.stack([torch.stack([part[name] for name in names]) for part in parts]).sum(0)  # (terms,)
        if self._may_step(names, terms):
            if self.recipe.clip_grad is not None:
                self.accelerator.clip_grad_norm_(self.clipped, self.recipe.clip_grad)
            self.optimizer.step()
            self.ledger.add(self.update, self._rate(), names, terms)
            if self.average is not None:
                self.average.update(self.model, step=self.update + 1)
        self.optimizer.zero_grad(set_to_none=True)
        self.update += 1

    def _backward(self, batch: Batch, epoch: float, last: bool) -> dict[str, Tensor]:
        with self.accelerator.autocast():
            views = self.teachers(batch.images, batch.views)
        with (
            self.accelerator.autocast(),
            contextlib.nullcontext() if last else without_sync(self.accelerator, self.wrapped),
        ):
            terms = self.wrapped(batch.crops or batch.images, batch.labels, views, epoch)
            share = {name: term / self.settings.accumulate for name, term in terms.items()}
            self.accelerator.backward(torch.stack([term.float() for term in share.values()]).sum())
        return {name: term.detach().float() for name, term in share.items()}

    def _may_step(self, names: tuple[str, ...], terms: Tensor) -> bool:
        """False where the loss is not finite and such updates are to be skipped; only then the device is waited for."""
        if self.settings.nonfinite == "stop":
            return True
        values = self.accelerator.reduce(terms, "mean").tolist()  # type: ignore[union-attr]
        if all(map(math.isfinite, values)):
            self.skipped = 0
            return True
        self.skipped += 1
        if self.skipped > SKIPS:
            check_finite(self.update, self._rate(), names, values)
        found = {name: str(value) for name, value in zip(names, values)}
        self.journal.event("skipped: loss not finite", update=self.update, learning_rate=self._rate(), **found)
        return False

    def _set_moment(self, epoch: float) -> None:
        """Let the methods set what changes during training, and note whether it does."""
        when = epoch if self.recipe.method_schedules else math.inf
        moment = {}
        for method in self.methods:
            moment |= method.advance(self.model, when)
        if moment != self.moment and self.moment:
            self.changed = self.update
        self.moment = moment
        self.learner.steady = self.update - self.changed >= STEADY_AFTER or self.changed < 0

    def stretch(self, start: int, stop: int) -> Stretch:
        """The updates from `start` to `stop`, as their batches are wanted."""
        settings, crops = self.settings, self.learner.objective.crops(self.recipe, self.config)
        # images may be prepared by compiled code in half precision where the model runs so as well
        quick = settings.compile and settings.precision != "no" and self.device.type == "cuda"
        return Stretch(self.plan, start, stop, self.device, settings.workers, quick, self.teachers.sizes(), crops)

    def spent(self) -> float:
        """Seconds of training, those before a resumption included."""
        return self.seconds + time.perf_counter() - self.started

    def _rate(self) -> float:
        return max(group["lr"] / group.get("lr_scale", 1.0) for group in self.optimizer.param_groups)

    def _log(self) -> None:
        terms = self.ledger.read(self.accelerator)
        for note in self.learner.objective.notices():
            self.journal.event(note)
        now = time.perf_counter()
        speed = (self.update - self.logged_update) * self.plan.batch_size / (now - self.logged)
        self.logged, self.logged_update = now, self.update
        if terms:
            whole = {"loss": sum(terms.values()), **(terms if len(terms) > 1 else {})}
            whole |= self.learner.objective.figures()
            self.journal.step(
                self.update, {**whole, "learning_rate": self._rate(), **self.moment, "images_per_second": speed}
            )

    def _end_epoch(self, last: bool) -> dict[str, Evaluation]:
        epoch = self.update // self.plan.updates_per_epoch
        every = self.settings.evaluate_every
        if self.val is None or not every or not (last or epoch % every == 0):
            return {}
        evaluations = self._evaluate()
        values = {f"{name}_{key}": v for name, e in evaluations.items() for key, v in e.summary().items()}
        self.journal.epoch(epoch, self.update, {**values, "seconds": self.spent()})
        self.logged, self.logged_update = time.perf_counter(), self.update
        return evaluations

    def _evaluate(self) -> dict[str, Evaluation]:
        """The student and its moving average at the methods' final settings."""
        for method in self.methods:
            method.advance(self.model, math.inf)
        self.moment = {}
        models = {"val": self.wrapped} | ({"ema": self.average.module} if self.average else {})
        return {name: self.measure(model) for name, model in models.items()}

    def measure(self, model: nn.Module) -> Evaluation:
        """The accuracy of a model on the images for validation."""
        assert self.val is not None
        asked = self.settings
        how = Conditions(self.device, asked.evaluation_batch_size, asked.precision, asked.workers, self.accelerator)
        judge = self.learner.objective.judge or self.task.measure_of(self.model)
        return judge(model, self.val, self.config, how)

    def save(self) -> None:
        """Write the state to the run folder; all processes take part in gathering it."""
        if self.folder is not None:
            state = snapshot(self)
            if self.main:
                write_checkpoint(self.folder, state)
            self.accelerator.wait_for_everyone()

    def _finish(self, evaluations: dict[str, Evaluation]) -> Result:
        finished = self.update >= self.stop
        for method in self.methods:
            method.advance(self.model, math.inf)
        model, ema = self.model, None if self.average is None else self.average.module
        if self.empty is not None:
            ema = None if ema is None else filled(copy.deepcopy(self.empty), whole_state(ema))
            model = filled(self.empty, whole_state(self.learner), "student.")
        else:
            for path, norm in self.plain_norms.items():
                model.set_submodule(path, norm)
            for path, norm in self.objective_norms.items():
                self.learner.objective.set_submodule(path, norm)
        result = Result(
            model.eval(), ema, evaluations.get("val"), evaluations.get("ema"), self.journal.epochs, self.update,
            finished, self.spent(), self.folder, self.start,
        )  # fmt: skip
        if self.main and finished:
            result.write()
            if self.folder is not None and result.evaluation is not None:
                self.task.pictures(result.model, self.val, result.evaluation, self.folder)
        self.accelerator.wait_for_everyone()
        return result
