"""The end of the job: teacher and lean model timed side by side once more, and judged on images nobody has seen."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..core import apply, fuse
from ..data.samples import sample_images
from ..export import FORMATS, TARGETS
from .choose import MISSED
from .clock import Clock
from .judge import Judge, accuracies
from .parts import Parts
from .plan import Plan, Space
from .target import Options, Target


@dataclass
class Finish:
    """Times, judges and exports what was made.

    Attributes:
        teacher: the unchanged model.
        space: what plans are made from.
        parts: images; those for judging count here.
        clock: times models.
        options: how the job is done.
    """

    teacher: nn.Module
    space: Space
    parts: Parts
    clock: Clock
    options: Options

    def __call__(
        self, plan: Plan, model: nn.Module, target: Target, budget: float, done: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Speed, agreement, accuracy where there are labels, and whether the target is met.

        Args:
            plan: what was changed.
            model: the lean model, fused.
            target: what was asked for.
            budget: seconds a batch that this comes to.
            done: called when a model is ready, has had a turn or is judged: four times and once a turn.
        """
        models = {"teacher": fuse(apply(self.teacher.cpu()), verify=False)}
        if plan != Plan(self.space.sizes[0]):  # else it is the same program, of which two timings differ by noise alone
            models["lean"] = model
        timed = self.clock.models(models, done)
        timed.setdefault("lean", timed["teacher"])
        speedup, spread = timed["lean"].speedup(timed["teacher"])
        final: dict[str, Any] = {
            "seconds": timed["lean"].median, "teacher_seconds": timed["teacher"].median, "speedup": speedup,
            "spread": spread, **self._judged(plan, model, done),
        }  # fmt: skip
        return {**final, "met": met(target, final, budget)}

    def _judged(self, plan: Plan, model: nn.Module, done: Callable[[], None]) -> dict[str, Any]:
        """Agreement with the teacher on the images kept apart, and accuracies where there are labels."""
        device, judging = str(self.options.place.device), self.parts.judging
        images = min(len(judging), self.options.judging)

        def view(size: tuple[int, int]) -> Tensor:
            seen_by = model if size == plan.size else self.teacher
            return sample_images(seen_by, judging, images, split="val", seed=self.options.seed)

        judge = Judge(self.teacher.to(device), self.space, view)
        verdict = judge.verdict(model.to(device), plan.size)
        found = {"agreement": verdict.agreement, "images": verdict.images, "drop": 100 - verdict.agreement}
        done()
        found |= accuracies(self.teacher, model, self.parts.training, judging, device)
        done()
        model.cpu()
        return found

    def export_is_missing(self, file: Path, done: dict[str, Any] | None) -> bool:
        """Whether an export was asked for that is not there, or is of another format.

        Args:
            file: the checkpoint beside which it lies.
            done: what `exported` told of an earlier one; None where there was none.
        """
        wanted = self.options.export
        if wanted is None or done is None:
            return wanted is not None
        return done["format"] != wanted or not file.with_name(done["file"]).is_file()

    def exported(self, model: nn.Module, file: Path) -> dict[str, Any]:
        """Write the model in the format that was asked for beside its checkpoint; compared with it on real images.

        Args:
            model: the lean model, fused.
            file: its checkpoint.
        """
        assert self.options.export is not None
        target = TARGETS[self.options.export]
        images = sample_images(model, self.parts.judging, 4, split="val", seed=self.options.seed)
        done = FORMATS[target.name](model, file.with_name(file.stem + target.suffix), images=images)
        return {"file": done.path.name, "format": done.format, "error": done.parity.error, "bytes": done.size}


def met(target: Target, final: dict[str, Any], budget: float) -> bool:
    """Whether a target is met as measured.

    Args:
        target: what was asked for.
        final: what was measured.
        budget: seconds a batch that the target comes to.
    """
    if target.max_drop is not None:
        return final["drop"] <= target.max_drop + 1e-9
    if target.speedup is not None:
        return final["speedup"] * MISSED >= target.speedup
    return final["seconds"] <= MISSED * budget


def why_missed(target: Target, chosen: dict[str, Any], budget: float) -> str:
    """Why a target is not met, for people.

    Args:
        target: what was asked for.
        chosen: the plan that was chosen, with its time as it was measured then.
        budget: seconds a batch that the target comes to.

    >>> why_missed(Target(speedup=50), {"measured": 1.0, "out_of_reach": True}, 0.02)
    'this is the fastest plan that was found'
    """
    if target.max_drop is not None:
        return "on the images kept apart the plan loses more than on those it was chosen by"
    if chosen.get("out_of_reach"):
        return "this is the fastest plan that was found"
    if chosen["measured"] > MISSED * budget:
        return "none of the plans that were timed is as fast as was predicted, and this is the fastest of them"
    return "timed once more the plan is slower than when it was chosen, as on a machine that does other things too"
