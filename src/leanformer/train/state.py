"""All that a run must remember to go on as if nothing had happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.method import plain
from ..data.draws import rng_state, set_rng_state
from .parallel import load_optimizer_state, load_whole_state, optimizer_state, whole_state

if TYPE_CHECKING:
    from .loop import Run


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
        "data": {"seed": run.plan.seed, "images": run.plan.images, "damaged": run.data.damage.count},
    }


def restore(run: Run, state: dict[str, Any]) -> None:
    """Bring a fresh run to a saved state; refuse that of another run."""
    mine, theirs = identity(run), state["run"]
    for key in mine:
        if mine[key] != theirs.get(key):
            raise ValueError(f"the checkpoint is from another run: {key} was {theirs.get(key)}, now {mine[key]}")
    load_whole_state(run.learner, state["learner"])
    load_optimizer_state(run.learner, run.bare_optimizer, state["optimizer"])
    run.rates.scheduler.load_state_dict(state["scheduler"])
    if run.average is not None:
        load_whole_state(run.average.module, state["ema"])
    if run.accelerator.scaler is not None and state["scaler"] is not None:
        run.accelerator.scaler.load_state_dict(state["scaler"])
    run.update, run.seconds = state["update"], state["seconds"]
    run.data.damage.count = state["data"]["damaged"]
    set_rng_state(state["rng"])


def identity(run: Run) -> dict[str, Any]:
    """What two runs must share for one to continue the other."""
    recipe = {key: plain(value) for key, value in run.recipe.to_json().items()}
    return {**recipe, "seed": run.plan.seed, "images": run.plan.images}
