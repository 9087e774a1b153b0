"""Predicted beside measured time, for plans that a search left, those made by hand, and plans drawn at random."""

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import leanformer as lf
from leanformer.core import fold
from leanformer.measure import console, record, write_result
from leanformer.search.clock import Clock
from leanformer.search.cost import Costs
from leanformer.search.directions import Direction, varied, with_another
from leanformer.search.explore import Explorer
from leanformer.search.plan import Plan, Space

from .compile_together import compile_together
from .fresh_device import fresh_device
from .photographs import teacher_of
from .plans_again import Timed
from .plans_found import build_of, found_plans

AT_ONCE = 6
"""Plans that are timed in turn with each other and the model; more would take long between two turns of one."""


@dataclass(frozen=True)
class Check:
    """What predictions are held against.

    Attributes:
        checkpoint: weights of the teacher.
        clock: times models where the costs were timed.
        timed: the costs, which predict, and what the teacher's own optimised form took when they were timed.
    """

    checkpoint: Path
    clock: Clock
    timed: Timed

    def run(
        self, space: Space, folder: Path, random_plans: int, workers: int, output: Path, go: Path | None = None
    ) -> None:
        """Measure the plans of a folder and random ones; what is measured is kept, whatever happens to the rest.

        Args:
            space: what plans are made of.
            folder: where the search left its plans.
            random_plans: how many are drawn at random.
            workers: processes that compile side by side; they still time in turn.
            output: the result file.
            go: a file that lets timing begin.
        """
        wanted, costs, seconds = found_plans(folder), self.timed.costs, self.timed.teacher
        for index, plan in enumerate(drawn(space, costs, seconds, random_plans)):
            wanted[f"random {index}"] = {"plan": plan.to_json(), "predicted": costs.predict(plan)}
        names, place = list(wanted), self.clock.place
        groups = [{name: wanted[name] for name in names[i : i + AT_ONCE]} for i in range(0, len(names), AT_ONCE)]
        jobs = [functools.partial(time_plans, self.checkpoint, self.clock, seconds, group) for group in groups]
        about: dict[str, Any] = {"teacher_seconds": seconds, "batch": place.batch, "dtype": str(place.dtype)}
        rows: list[dict[str, Any]] = []
        for job, found in compile_together(jobs, workers, go):
            if found is None:
                console().print(f"not timed, its process ended early: {', '.join(job.args[-1])}", highlight=False)
            rows += found or []
            about |= _errors(rows)
            write_result(record("lean plans", rows, place.device, **about, **self.timed.to_json()), output)
        console().print(about)


def time_plans(
    checkpoint: Path,
    clock: Clock,
    seconds: float,
    plans: Mapping[str, dict[str, Any]],
    ready: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """A row for each plan, timed in turn with the teacher.

    The error is that of the predicted *speed-up*, so that a machine which became slower since the costs were timed
    does not count against the plan.

    Args:
        checkpoint: weights of the teacher.
        clock: times models.
        seconds: what the teacher took when the costs were timed.
        plans: name → plan and what is predicted of it.
        ready: called once when all is compiled and only the timing is left.
    """
    teacher = teacher_of(checkpoint)
    models = {"teacher": fold(lf.apply(teacher))} | {name: fold(build_of(plans[name])(teacher)) for name in plans}
    left = len(models)

    def done() -> None:
        nonlocal left
        left -= 1
        if left == 0 and ready is not None:
            ready()

    with fresh_device(clock.place.device):
        timed = clock.models(models, done)
    rows = []
    for name, told in plans.items():
        speedup, spread = timed[name].speedup(timed["teacher"])
        predicted = seconds / told["predicted"]
        rows.append({"model": name, **told, "measured": timed[name].median, "error": speedup / predicted - 1,
                     "predicted_speedup": predicted, "speedup": speedup, "spread": spread})  # fmt: skip
    return rows


def _errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How far predictions were off for the plans that were drawn at random; nothing where there is none."""
    errors = torch.tensor([row["error"] for row in rows if row["model"].startswith("random")]).abs()
    if not len(errors):
        return {}
    return {"median_error": errors.median().item(), "worst_error": errors.max().item(), "plans_checked": len(errors)}


def drawn(space: Space, costs: Costs, seconds: float, count: int, seed: int = 1) -> list[Plan]:
    """Plans at random: any method in any blocks at any strength, at most sizes, within the costs that were timed.

    Args:
        space: what plans are made of.
        costs: what they cost.
        seconds: of the teacher.
        count: how many plans.
        seed: of the draws.
    """
    draw = random.Random(seed)
    explorer = Explorer(space, costs, judge=None)  # type: ignore[arg-type]
    found: list[Plan] = []
    while len(found) < count:
        direction = Direction(draw.choice(space.sizes), with_another({}, space, draw))
        for _ in range(draw.randint(1, 6)):
            direction = varied(direction, space, draw)
        plan = explorer.at_strength(direction, draw.uniform(0.2, 1.0))
        if plan not in found and 0.2 * seconds < costs.predict(plan) < seconds:
            found.append(plan)
    return found
