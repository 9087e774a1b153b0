"""Where the time of an update goes.

    data = an update on fresh batches - the same update on one batch that is kept

What the pipeline costs is what training would gain without it: work that hides behind the device costs nothing. The
weights are held, for they would soon fit the batch that is kept, and products of small gradients draw less power and
run faster.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..core import Objective
from .data import Source, check_fit, open_data
from .journal import Journal
from .learner import check_teachers, choose_objective
from .loader import training_batches
from .loop import Run
from .recipe import Recipe
from .runs import Settings

TURNS, WARM_UP = 3, 5
STILL = 1e-20
"""A learning rate that is none: recipes do not take 0."""


def profile(
    model: nn.Module,
    *,
    recipe: Recipe,
    data: Source,
    teacher: nn.Module | dict[str, nn.Module] | None = None,
    objective: str | Objective | None = None,
    updates: int = 20,
    **options: Any,
) -> dict[str, float]:
    """Milliseconds of a whole update, what fresh data add to it, the data and the teachers alone, and the data's share.

    The arguments are those of `fit`. The updates are whole ones, but at a learning rate that moves no weight.

    >>> import torch, leanformer as lf
    >>> model = lf.create("vit", img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=1, num_classes=2)
    >>> images, labels = torch.zeros(8, 3, 16, 16, dtype=torch.uint8), torch.arange(8) % 2
    >>> spent = profile(model, recipe=lf.recipes.plain(batch_size=4), data=(images, labels), device="cpu", updates=2)
    >>> sorted(spent)
    ['data_alone_ms', 'data_ms', 'data_share', 'images_per_second', 'teachers_ms', 'update_ms']
    """
    settings = Settings(**options).replace(quiet=True)
    teachers = {} if teacher is None else teacher if isinstance(teacher, dict) else {"teacher": teacher}
    opened = open_data(data, "train", settings.seed, recipe.batch_size)
    check_fit(model, opened)
    chosen = choose_objective(objective, model, teachers, recipe.objective)
    check_teachers(chosen, teachers, model)
    recipe = recipe.replace(learning_rate=STILL, min_learning_rate=0.0, warmup_learning_rate=0.0)
    run = Run(model, recipe, settings, opened, None, teachers, chosen, None)
    run.journal = Journal(None, quiet=True)
    run.wrapped.train(not recipe.frozen_statistics)
    whole = (updates + WARM_UP) * (2 * TURNS + 1) * settings.accumulate
    source = training_batches(opened, run.plan, recipe, run.config, run.device, 0, whole, settings.workers, run.quick)
    kept = itertools.repeat(batch := next(source))
    fresh_times, kept_times = [], []
    for _ in range(TURNS):  # in turn, so that a drift of the machine hits both alike
        fresh_times.append(_time(lambda: run._one_update(source), run.device, updates))
        kept_times.append(_time(lambda: run._one_update(kept), run.device, updates))
    update = statistics.median(fresh_times)
    added = max(0.0, update - statistics.median(kept_times))
    micro = settings.accumulate
    alone = _time(lambda: run.mix(*_pair(next(source))), run.device, updates) * micro
    with run.accelerator.autocast():
        teach = _time(lambda: run.teachers(batch.images), run.device, updates) * micro
    run.learner.close()
    run.teachers.close()
    return {
        "update_ms": 1e3 * update,
        "data_ms": 1e3 * added,
        "data_alone_ms": 1e3 * alone,
        "teachers_ms": 1e3 * teach,
        "data_share": added / update,
        "images_per_second": recipe.batch_size / update,
    }


def _pair(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return batch.images, batch.labels


def _time(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Seconds a call, after a warm-up, with the device's queue empty before and after."""
    for _ in range(WARM_UP):
        call()
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait(device)
    return (time.perf_counter() - start) / repeats


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
