"""One run of `lean`, step by step: time, search, build, distil, fuse, time again.

Every step that is done is written to plan.json in the output folder, so that the same call goes on where it was.
"""

import copy
import dataclasses
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..core import apply, calibrate, card_json, fold, fuse, save, write_atomically
from ..data.samples import sample_images
from ..data.sources import Data
from ..speed import chip_name
from ..train import Recipe, Result, fit
from ..train.evaluation import evaluate
from ..train.finetune import finetune
from .clock import Clock
from .cost import Costs, calibrate_scale, measure_costs
from .explore import Candidate, Explorer
from .judge import Judge
from .parts import Parts, some
from .plan import Plan, space_of
from .report import page
from .target import Options, Target

FORMAT = 1
TRIAL = 6
"""Updates by which the pace of training is found."""
MISSED = 1.02
"""A measured time above the budget by more than this share is a miss, and the search tightens its belt."""
CURVE = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
"""Speed-ups tried for `max_drop`."""


@dataclass
class Lean:
    """What came out of `lean`.

    Attributes:
        model: the lean model, fused, in evaluation mode.
        plan: what was changed.
        speedup: measured at the end, over the teacher's own optimised form.
        met: whether the target is met as measured.
        record: everything that plan.json holds.
        folder: the output folder, where one was given.
    """

    model: nn.Module
    plan: Plan
    speedup: float
    met: bool
    record: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None


class Job:
    """One run of `lean`, step by step; each step is skipped where the output folder has its result."""

    def __init__(
        self, teacher: nn.Module, parts: Parts, options: Options, folder: Path | None, said: Callable[[str], None]
    ):
        self.teacher = teacher.eval()
        self.parts, self.options, self.folder, self.said = parts, options, folder, said
        self.clock = Clock(options.place, options.runtime)
        self.space = space_of(teacher, options.methods, options.sizes)
        self.record: dict[str, Any] = {"format": FORMAT, "about": self._about()}
        if folder is not None:
            self._resume(folder)

    def run(self) -> Lean:
        """All steps."""
        began = time.perf_counter()
        costs = self._costs()
        budget = self.options.target.budget(self.record["teacher"]["seconds"])
        plan = self._plan(costs, budget)
        student = self._student(plan)
        model = fuse(student.cpu()) if plan.shares else fuse(student.cpu(), verify=False)
        self._finish(plan, model, budget, time.perf_counter() - began)
        final = self.record["final"]
        if self.folder is not None:
            save(model, self.folder / "lean.safetensors")
            page(self.record, plan, model, self.teacher, self._some_images(model)).save(self.folder / "report.html")
        return Lean(model, plan, final["speedup"], final["met"], self.record, self.folder)

    def _about(self) -> dict[str, Any]:
        """What must be the same for a folder's results to be used again."""
        place, options = self.options.place, self.options
        weights = sum(p.detach().double().sum().item() for p in self.teacher.parameters())
        return {
            "model": {**card_json(self.teacher), "versions": None},
            "weights": f"{weights:.9e}",
            "data": [[part.name, len(part)] for part in (self.parts.choosing, self.parts.training, self.parts.judging)],
            "target": dataclasses.asdict(options.target),
            "place": [chip_name(place.device), place.batch, str(place.dtype), options.runtime],
            "search": [list(options.methods or ()), options.sizes, options.evaluations, options.seed],
        }  # fmt: skip

    def _resume(self, folder: Path) -> None:
        path = folder / "plan.json"
        if path.is_file():
            try:
                found = json.loads(path.read_text())
            except json.JSONDecodeError as error:
                raise ValueError(f"{path} is damaged: {error}; remove it to start anew") from error
            about = json.loads(json.dumps(self.record["about"]))
            if not isinstance(found, dict) or found.get("about") != about:
                differing = [key for key in about if found.get("about", {}).get(key) != about[key]]
                raise ValueError(
                    f"{folder} holds another run (other {', '.join(differing)}); choose another output folder"
                )
            self.record = found
        folder.mkdir(parents=True, exist_ok=True)

    def _keep(self) -> None:
        if self.folder is not None:
            text = json.dumps(self.record, indent=1) + "\n"
            write_atomically(self.folder / "plan.json", lambda name: Path(name).write_text(text))

    def _costs(self) -> Costs:
        """The table of costs, scaled to whole models; timed here or read from the folder."""
        if "costs" in self.record:
            return Costs.from_json(self.record["costs"])
        self.said("timing the model as it is, and its parts")
        ends = (self.space.sizes[0], self.space.sizes[-1])
        models = {size: self._built(Plan(size)) for size in dict.fromkeys(ends)}
        timed = self.clock.times(models)
        own = timed[self.space.sizes[0]]
        costs = measure_costs(self.teacher, self.space, self.options.place, said=self.said)
        calibrate_scale(costs, self.space, {size: timing.median for size, timing in timed.items()})
        self.record["teacher"] = {"seconds": own.median, "spread": own.spread}
        self.record["costs"] = costs.to_json()
        self._keep()
        rate = self.options.place.batch / own.median
        self.said(f"the model itself: {rate:,.0f} images a second, optimised")
        return costs

    def _built(self, plan: Plan) -> nn.Module:
        """The plan's model as it will run, for timing: its weights do not matter."""
        return fold(plan.build(self.teacher))

    def _judge(self) -> Judge:
        place = self.options.place
        teacher = self.teacher.to(place.device)

        def images(size: tuple[int, int]) -> Tensor:
            return self._view(Plan(size).build(self.teacher))

        return Judge(teacher, self.space, images)

    def _plan(self, costs: Costs, budget: float) -> Plan:
        """The plan that is built: searched, then checked by the clock."""
        if "chosen" in self.record:
            return Plan.from_json(self.record["chosen"]["plan"])
        judge = self._judge()
        explorer = Explorer(
            self.space, costs, judge, few=64 if judge.device.type == "cpu" else 256, seed=self.options.seed
        )
        drop = self.options.target.max_drop
        chosen = self._within(explorer, budget) if drop is None else self._fastest_within(explorer, drop)
        seen = sorted(explorer.seen.values(), key=lambda each: each.verdict.loss)
        self.record["candidates"] = [_told(each) for each in seen]
        self.record["chosen"] = chosen
        self._keep()
        self.said(f"chosen: {Plan.from_json(chosen['plan'])}")
        return Plan.from_json(chosen["plan"])

    def _within(self, explorer: Explorer, budget: float) -> dict[str, Any]:
        """The best plan that really takes no more than the budget, measured; the fastest one where none does."""
        asked, tries = budget, []
        for _ in range(3):
            found = self._searched(explorer, asked)
            if not found:
                break
            best = found[:3]
            timed = self.clock.times({index: self._built(each.plan) for index, each in enumerate(best)})
            for index, each in enumerate(best):
                tries.append({**_told(each), "measured": timed[index].median, "spread": timed[index].spread})
            met = [each for each in tries if each["measured"] <= MISSED * budget]
            if met:
                return {**min(met, key=lambda each: each["loss"]), "tried": tries}
            asked *= budget / min(each["measured"] for each in tries[-len(best) :])
        if not tries:
            return self._out_of_reach(explorer, budget)
        return {**min(tries, key=lambda each: each["measured"]), "tried": tries}

    def _out_of_reach(self, explorer: Explorer, budget: float) -> dict[str, Any]:
        """The fastest plan that there is, for a target that nothing meets."""
        reach = [explorer.within(0.0, d, size) or explorer.at_strength(d, size, 1.0) for d, size in explorer.starts()]
        fastest = min(reach, key=explorer.costs.predict)
        told = _told(Candidate(fastest, explorer.costs.predict(fastest), explorer.judge(fastest)))
        measured = self.clock.times({0: self._built(fastest)})[0]
        self.said(f"nothing takes {budget * 1e3:.3g} ms or less; the fastest plan takes {measured.median * 1e3:.3g} ms")
        return {**told, "measured": measured.median, "spread": measured.spread, "out_of_reach": True}

    def _fastest_within(self, explorer: Explorer, drop: float) -> dict[str, Any]:
        """The fastest plan, on a ladder of speed-ups, that answers otherwise in `drop` per cent at most."""
        teacher = self.record["teacher"]["seconds"]
        unchanged = Plan(self.space.sizes[0])
        chosen = {**_told(Candidate(unchanged, teacher, explorer.judge(unchanged))), "measured": teacher}
        for times in CURVE:
            found = self._searched(explorer, teacher / times)
            good = [each for each in found if 100 - each.verdict.agreement <= drop]
            if not good:
                break
            measured = self.clock.times({0: self._built(good[0].plan)})[0]
            chosen = {**_told(good[0]), "measured": measured.median, "spread": measured.spread}
        return chosen

    def _searched(self, explorer: Explorer, budget: float) -> list[Candidate]:
        until = time.monotonic() + 60 * self.options.minutes_of_search
        best = math.inf

        def told(candidate: Candidate) -> None:
            nonlocal best
            if candidate.verdict.loss < best:
                best = candidate.verdict.loss
                self.said(f"agreement {candidate.verdict.agreement:.1f}%: {candidate.plan}")

        return explorer.best(budget, self.options.evaluations, told, stop=lambda: time.monotonic() > until)

    def _student(self, plan: Plan) -> nn.Module:
        """The plan's model, calibrated and distilled."""
        student = plan.build(self.teacher.cpu())
        if not plan.shares and plan.size == self.space.sizes[0]:
            return student
        if not self.options.train:
            return calibrate(student, Plan(plan.size).build(self.teacher), self._view(student))
        self.said("distilling")
        training, recipe = self._affordable(student)
        result = self._fit(student, training, recipe, folder=None if self.folder is None else self.folder / "train")
        if not result.finished:
            raise KeyboardInterrupt  # what is trained so far lies in the folder, and the same call goes on from there
        self.record["start"] = result.start
        return (result.ema if result.ema is not None else result.model).eval()

    def _fit(
        self, student: nn.Module, data: Data, recipe: Recipe, folder: Path | None, max_updates: int | None = None
    ) -> Result:
        place = self.options.place
        return fit(
            student, recipe=recipe, data=data, teacher={"teacher": apply(self.teacher.cpu())}, objective="soft",
            output=folder, resume=folder is not None and folder.exists(), seed=self.options.seed,
            device=str(place.device), precision="bf16" if place.device.type == "cuda" else "no", evaluate_every=0,
            quiet=True, max_updates=max_updates, calibrate=len(self.parts.choosing),
        )  # fmt: skip

    def _some_images(self, model: nn.Module) -> Tensor:
        """A few of the user's own images, as the lean model sees them."""
        return sample_images(model, self.parts.judging, 4, split="val", seed=self.options.seed)

    def _view(self, model: nn.Module) -> Tensor:
        """The images for choosing, as a model of this size sees them."""
        return sample_images(model, self.parts.choosing, len(self.parts.choosing), seed=self.options.seed)

    def _recipe(self, images: int) -> Recipe:
        """Soft answers on mixtures of images at a low rate: what kept most of a ViT on unlabelled photographs."""
        if self.options.recipe is not None:
            return self.options.recipe
        epochs = self.options.epochs or 10
        batch = max(2, min(256, images // 8 // 2 * 2))
        return finetune(
            epochs=epochs, batch_size=batch, learning_rate=1e-4, ema=None, mixup=0.8, cutmix=0.0, auto_augment=None,
            label_smoothing=0.0, warmup_epochs=min(1, epochs / 5),
        )  # fmt: skip

    def _affordable(self, student: nn.Module) -> tuple[Data, Recipe]:
        """Images and recipe of the training; what a number of minutes pays for is found once and written down."""
        training, recipe = self.parts.training, self._recipe(len(self.parts.training))
        if self.options.minutes is None:
            return training, recipe
        if "training" not in self.record:
            updates = max(1, int(60 * self.options.minutes / self._pace(student, recipe)))
            an_epoch = max(1, len(training) // recipe.batch_size)
            images = len(training) if updates >= an_epoch else updates * recipe.batch_size
            self.record["training"] = {"images": images, "epochs": max(1, updates // an_epoch)}
            self._keep()
        found = self.record["training"]
        return some(training, list(range(found["images"]))), recipe.replace(epochs=found["epochs"])

    def _pace(self, student: nn.Module, recipe: Recipe) -> float:
        """Seconds an update, by a few of them on a copy; with what it takes to begin, so rather too many."""
        began = time.perf_counter()
        self._fit(copy.deepcopy(student), self.parts.training, recipe, max_updates=TRIAL, folder=None)
        return (time.perf_counter() - began) / TRIAL

    def _finish(self, plan: Plan, model: nn.Module, budget: float, seconds: float) -> None:
        """Time teacher and lean model side by side once more, judge both on images nobody has seen, and write it."""
        self.said("timing and judging the result")
        own = fuse(apply(self.teacher.cpu()), verify=False)
        timed = self.clock.times({"teacher": own, "lean": model})
        speedup, spread = timed["lean"].speedup(timed["teacher"])
        final: dict[str, Any] = {
            "seconds": timed["lean"].median, "teacher_seconds": timed["teacher"].median, "speedup": speedup,
            "spread": spread, **self._judged(plan, model), "took": seconds,
        }  # fmt: skip
        target = self.options.target
        final["met"] = self._met(target, final, budget)
        self.record["final"] = final
        self._keep()

    def _met(self, target: Target, final: dict[str, Any], budget: float) -> bool:
        if target.max_drop is not None:
            return final["drop"] <= target.max_drop + 1e-9
        if target.speedup is not None:
            return final["speedup"] * MISSED >= target.speedup
        return final["seconds"] <= MISSED * budget

    def _judged(self, plan: Plan, model: nn.Module) -> dict[str, Any]:
        """Agreement with the teacher on the images kept apart, and accuracies where there are labels."""
        device = str(self.options.place.device)
        judging = self.parts.judging
        images = min(len(judging), self.options.judging)
        judge = Judge(
            self.teacher.to(device),
            self.space,
            lambda size: sample_images(
                model if size == plan.size else self.teacher, judging, images, split="val", seed=self.options.seed
            ),
        )
        verdict = judge.verdict(model.to(device), plan.size)
        found = {"agreement": verdict.agreement, "images": verdict.images, "drop": 100 - verdict.agreement}
        if judging.labelled and judge.classifies:
            theirs = evaluate(self.teacher, judging, device=device).top1
            ours = evaluate(model, judging, device=device).top1
            found |= {"teacher_top1": theirs, "top1": ours, "drop": theirs - ours}
        model.cpu()
        return found


def _told(candidate: Candidate) -> dict[str, Any]:
    verdict = candidate.verdict
    return {
        "plan": candidate.plan.to_json(), "predicted": candidate.seconds, "loss": verdict.loss,
        "agreement": verdict.agreement, "images": verdict.images,
    }  # fmt: skip
