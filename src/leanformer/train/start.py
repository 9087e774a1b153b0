"""Where training starts: a student made from its teacher is fitted to it first, and told how good it is then.

    teacher  →  apply  →  student with new modules, which have learnt nothing  →  calibrate  →  update 0

A student starts from a teacher when all that the methods did not swap is bit-equal to it. One from fresh weights, one
that was trained since, and modules that were calibrated before are left as they are. So are modules with a ramp: at
update 0 they are the teacher's own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from ..backbones import resize
from ..core import Ramped, blocks_of, calibrate, starts_from, uncalibrated
from ..data.places import without_places
from ..data.sources import Stream
from .token_labels import Annotator

if TYPE_CHECKING:
    from .loop import Run

BATCH = 64


@torch.no_grad()
def begin(run: Run, teachers: dict[str, nn.Module]) -> dict[str, Any] | None:
    """Calibrate the student of a new run in place.

    Args:
        run: A run whose model and teachers are on their device.
        teachers: The teachers by name.

    Returns:
        Plain values: the teacher that the student starts from, slots and images of the calibration, why there was
        none, and without data for validation how often student and teacher agree. None where it starts from no teacher.
    """
    for name, teacher in teachers.items():
        known = (teacher.model if isinstance(teacher, Annotator) else teacher).eval()
        origin = _at_size_of(run, known) if list(blocks_of(known)) == list(blocks_of(run.model)) else None
        if origin is not None and starts_from(run.model, origin):
            return {"teacher": name, **_calibrated(run, origin)}
    return None


def _calibrated(run: Run, teacher: nn.Module) -> dict[str, Any]:
    count = run.settings.calibrate
    slots = uncalibrated(run.model, teacher)
    if not count or not slots:
        return {"not_calibrated": "it was switched off"} if slots else {}
    slots = [path for path in slots if not _starts_as_the_teachers(run, path)]
    if not slots:
        return {"not_calibrated": "with a ramp, modules start as the teacher's own"}
    data = without_places(run.data)
    if isinstance(data, Stream):
        return {"not_calibrated": f"no random images can be taken of the stream {data.name}"}
    images = run.task.sample(run.model, data, count, run.settings.seed).to(run.device)
    _set_methods(run, 0.0 if run.recipe.method_schedules else math.inf)
    try:
        fitted = calibrate(run.model, teacher, images, BATCH, slots).state_dict()
    except ValueError as error:  # a teacher's module that this one cannot be fitted to
        return {"not_calibrated": str(error)}
    if not all(value.isfinite().all() for value in fitted.values()):
        return {"not_calibrated": f"the fit to {len(images)} images is not finite"}
    run.model.load_state_dict(fitted)
    if run.accelerator.num_processes > 1:  # the same bits in all processes
        for value in run.model.state_dict().values():
            dist.broadcast(value, 0)
    found: dict[str, Any] = {"calibrated_slots": len(slots), "calibrated_images": len(images)}
    _set_methods(run, math.inf)
    return found | (run.task.agreement(run.model, teacher, images) if run.val is None else {})


def tell(run: Run) -> None:
    """Log how good the student is before the first update, and write that down with its calibrated weights."""
    assert run.start is not None
    if "not_calibrated" in run.start:
        run.journal.event("not calibrated", reason=run.start["not_calibrated"])
    if run.val is not None:
        _set_methods(run, math.inf)
        run.start |= run.measure(run.wrapped).summary()
    figures = {name: value for name, value in run.start.items() if name != "not_calibrated"}
    run.journal.event(
        "training starts from", **{k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
    )
    run.save()


def _starts_as_the_teachers(run: Run, path: str) -> bool:
    """Whether the slot's first form in this run computes with the teacher's weights, which a fit would take away."""
    slot = run.model.get_submodule(path)
    return run.recipe.method_schedules and isinstance(slot, Ramped) and slot.ramp_epochs > 0


def _set_methods(run: Run, epoch: float) -> None:
    """Set what changes during training for this moment: 0 as training starts, infinity as models are evaluated."""
    for method in run.methods:
        method.advance(run.model, epoch)


def _at_size_of(run: Run, teacher: nn.Module) -> nn.Module | None:
    """The teacher for images as the student sees them, or None where it cannot be shown them."""
    config, theirs = run.config, run.task.view(teacher)
    if any(tuple(theirs[key]) != tuple(config[key]) for key in ("mean", "std")):
        return None
    if theirs["input_size"] == config["input_size"]:
        return teacher
    try:
        return resize(teacher, config["input_size"][1:])
    except ValueError:
        return None
