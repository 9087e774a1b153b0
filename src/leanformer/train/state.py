"""All that a run must remember to go on as if nothing had happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ..core.method import plain
from ..data.draws import rng_state, set_rng_state
from ..fields import Within, check_value
from .parallel import load_optimizer_state, load_whole_state, optimizer_state, whole_state
from .task import Task

if TYPE_CHECKING:
    from .loop import Run

KINDS = {
    "run": dict,
    "update": Annotated[int, Within(0, 10**12)],
    "seconds": Annotated[float, Within(0)],
    "start": dict | None,
}
"""Values of a state that nothing else would refuse."""


def snapshot(run: Run) -> dict[str, Any]:
    """The state of a run between two updates, whole, of tensors and plain values."""
    scaler = run.accelerator.scaler
    return {
        "run": identity(run),
        "update": run.update,
        "seconds": run.spent(),
        "learner": whole_state(run.learner),
        "optimizer": optimizer_state(run.learner, run.bare_optimizer),
        "ema": None if run.average is None else whole_state(run.average.module),
        "scheduler": run.rates.scheduler.state_dict(),
        "scaler": None if scaler is None else scaler.state_dict(),
        "rng": rng_state(),
        "methods": dict(run.moment),
        "start": run.start,
        "data": {"seed": run.plan.seed, "images": run.plan.images, "damaged": run.data.damage.names},
    }


def restore(run: Run, state: dict[str, Any]) -> None:
    """Bring a fresh run to a saved state; refuse that of another run.

    Args:
        run: A run that was made for the same model, recipe and data.
        state: What `snapshot` told.
    """
    mine, theirs = identity(run), state.get("run")
    theirs = theirs if isinstance(theirs, dict) else mine  # refused below, with what else does not fit
    for key in mine:
        if mine[key] != theirs.get(key):
            raise ValueError(f"the checkpoint is from another run: {key} was {theirs.get(key)}, now {mine[key]}")
    try:
        for name, kind in KINDS.items():
            check_value(name, state[name], kind)
        _fill(run, state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        told = str(error).partition("\n")[0]
        raise ValueError(f"the checkpoint does not fit this run: {type(error).__name__} {told}") from error


def _fill(run: Run, state: dict[str, Any]) -> None:
    load_whole_state(run.learner, state["learner"])
    load_optimizer_state(run.learner, run.bare_optimizer, state["optimizer"])
    run.rates.scheduler.load_state_dict(state["scheduler"])
    if run.average is not None:
        load_whole_state(run.average.module, state["ema"])
    if run.accelerator.scaler is not None and state["scaler"] is not None:
        run.accelerator.scaler.load_state_dict(state["scaler"])
    run.update, run.seconds, run.start = state["update"], state["seconds"], state["start"]
    damaged = state["data"]["damaged"]
    # earlier versions wrote how often images were found unreadable, which does not tell which ones they are
    for name in () if isinstance(damaged, int) else damaged:
        run.data.damage.add(name)
    set_rng_state(state["rng"])


def identity(run: Run) -> dict[str, Any]:
    """What two runs must share for one to continue the other."""
    recipe = {key: plain(value) for key, value in run.recipe.to_json().items()}
    other = {} if run.task == Task() else {"task": plain(run.task.to_json())}
    return {**recipe, **other, "seed": run.plan.seed, "images": run.plan.images}
