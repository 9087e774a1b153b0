"""Where the time of an update goes.

    data = from a mark set before a batch is made to one set after it, in the running loop

On a GPU the marks lie in its own queue: what the pipeline computes counts, and so does a wait of the device for the
host. Beside it stand the same updates on one batch that is kept, and the chip's clock during both: work that runs at
another clock takes another time, whoever caused it. The weights are held, so that a batch that is kept is not learnt.
How long the host takes to ask an idle device for an update tells which of the two the other one waits for.
"""

import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..core import Objective
from ..data.loader import training_batches
from ..data.sources import Source, check_fit, open_data
from ..measure.energy import reading
from ..measure.timing import Clock, Timing, time_calls
from .answer_form import answers_as_before
from .journal import Journal
from .learner import check_teachers, choose_objective, in_their_roles
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
    """Milliseconds of a whole update, of the data in it, of the data and the teachers alone, and the data's share.

    The arguments are those of `fit`. The updates are whole ones, but at a learning rate that moves no weight. Spreads
    are half the range over the median; clocks are in MHz, 0 where the driver does not tell.

    >>> import torch, leanformer as lf
    >>> model = lf.create("vit", img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=1, num_classes=2)
    >>> images, labels = torch.zeros(8, 3, 16, 16, dtype=torch.uint8), torch.arange(8) % 2
    >>> spent = profile(model, recipe=lf.recipes.plain(batch_size=4), data=(images, labels), device="cpu", updates=2)
    >>> sorted(spent)[:6]
    ['clock_mhz', 'data_alone_ms', 'data_ms', 'data_share', 'host_ms', 'images_per_second']
    >>> sorted(spent)[6:]
    ['kept_clock_mhz', 'kept_update_ms', 'kept_update_spread', 'teachers_ms', 'update_ms', 'update_spread']
    """
    settings = Settings(**options).replace(quiet=True)
    teachers = {} if teacher is None else teacher if isinstance(teacher, dict) else {"teacher": teacher}
    with answers_as_before(model):
        return _spent(_held_still(model, recipe, settings, data, teachers, objective), updates)


def _spent(run: Run, updates: int) -> dict[str, float]:
    """What `profile` tells of a run that is ready for its first update."""
    settings = run.settings
    whole = (updates + WARM_UP) * (2 * TURNS + 1) * settings.accumulate
    source = training_batches(run.data, run.recipe, run.config, run.stretch(0, whole))
    kept = itertools.repeat(batch := next(source))
    marks, mix = Marks(run.device), run.mix
    marked = marks.batches(source)
    fresh, still = [], []
    for _ in range(TURNS):  # in turn, so that a drift of the machine hits both alike
        run.mix = marks.around(mix)  # type: ignore[assignment]
        fresh.append(_time(lambda: run._one_update(marked), run.device, updates))
        run.mix = mix
        still.append(_time(lambda: run._one_update(kept), run.device, updates))
    micro = settings.accumulate
    (update, clock), (kept_update, kept_clock) = _turns(fresh), _turns(still)
    spans, parts = marks.seconds(), 2 * micro  # each batch is made, then mixed
    spent = statistics.median(sum(spans[first : first + parts]) for first in range(0, len(spans), parts))
    host = _asking(lambda: run._one_update(kept), run.device, updates)
    alone, _ = _time(lambda: mix(next(source)), run.device, updates)
    with run.accelerator.autocast():
        teach, _ = _time(lambda: run.teachers(batch.images, batch.views), run.device, updates)
    run.learner.close()
    run.teachers.close()
    return {
        "update_ms": 1e3 * update.median,
        "data_ms": 1e3 * spent,
        "data_alone_ms": 1e3 * alone * micro,
        "teachers_ms": 1e3 * teach * micro,
        "host_ms": 1e3 * host,
        "kept_update_ms": 1e3 * kept_update.median,
        "data_share": spent / update.median,
        "images_per_second": run.recipe.batch_size / update.median,
        "update_spread": update.spread,
        "kept_update_spread": kept_update.spread,
        "clock_mhz": clock,
        "kept_clock_mhz": kept_clock,
    }


def _held_still(
    model: nn.Module,
    recipe: Recipe,
    settings: Settings,
    data: Source,
    teachers: dict[str, nn.Module],
    objective: str | Objective | None,
) -> Run:
    """A run that is ready for its first update, at a learning rate that moves no weight."""
    opened = open_data(data, "train", settings.seed, recipe.batch_size)
    check_fit(model, opened)
    chosen = choose_objective(objective, model, teachers, recipe.objective, opened)
    teachers = in_their_roles(chosen, teachers)
    check_teachers(chosen, teachers, model)
    recipe = recipe.replace(learning_rate=STILL, min_learning_rate=0.0, warmup_learning_rate=0.0)
    run = Run(model, recipe, settings, opened, None, teachers, chosen, None)
    run.journal = Journal(None, quiet=True)
    run.wrapped.train(not recipe.frozen_statistics)
    return run


class Marks:
    """Marks before and after what is timed: in the queue of a GPU, by the clock elsewhere.

    >>> marks = Marks(torch.device("cpu"))
    >>> marks.around(sum)([1, 2])
    3
    >>> len(marks.seconds())
    1
    """

    def __init__(self, device: torch.device):
        self.clock = Clock(device)
        self.pairs: list[tuple[Any, Any]] = []

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, marked each time."""

        def marked(*arguments: Any) -> Any:
            before = self.clock.mark()
            result = call(*arguments)
            self.pairs.append((before, self.clock.mark()))
            return result

        return marked

    def batches(self, source: Iterator[Any]) -> Iterator[Any]:
        """The same batches, the making of each one marked."""
        make = self.around(next)
        while True:
            yield make(source)

    def seconds(self) -> list[float]:
        """The time between the marks of each call; waits for the device."""
        self.clock.wait()
        return [self.clock.seconds(before, after) for before, after in self.pairs]


def _time(call: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, float]:
    """Seconds a call and the clock meanwhile, after a warm-up."""
    clocks = []
    for _ in range(WARM_UP):
        call()
    _, total = time_calls(
        call, repeats, device, meanwhile=lambda: clocks.append(reading(torch.cuda.clock_rate, device) or 0.0)
    )
    return total / repeats, clocks[0]


def _asking(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Seconds until a call returns that finds the device idle, and does not wait for it."""
    host, clock, times = Clock(torch.device("cpu")), Clock(device), []
    for _ in range(repeats):
        clock.wait()
        start = host.mark()
        call()
        times.append(host.seconds(start, host.mark()))
    clock.wait()
    return statistics.median(times)


def _turns(timings: list[tuple[float, float]]) -> tuple[Timing, float]:
    """The times of the turns and their median clock."""
    times, clocks = zip(*timings, strict=True)
    return Timing(list(times)), statistics.median(clocks)
