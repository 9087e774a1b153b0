"""Does a rewritten model give the same answers? Compared with the exact model, the choice of tokens held fixed.

Two tokens whose scores nearly tie may be chosen one way or the other after rounding, and either is right. So the exact
model is run with the choices that the judged model made, and only arithmetic is left to differ. What a compiled model
chose cannot be read, and it may choose otherwise for a few images: of these the median is taken.
"""

import copy
import math

import torch
from torch import Tensor, nn

from ..core import decision_paths, taps
from ..core.reduce import decisions, differing, held, recorded
from . import fp8

HALF_SLACK, FULL_SLACK = 2e-3, 1e-4
"""Errors that are always allowed, as a share of the outputs' norm: in half precision products take GELU's tanh form."""


class Judge:
    """Compares answers with those of the float32 model: a step may err as much as the plain low-precision model.

    Args:
        model: the fused model.
        plain: the same in the device's dtype.
        images: a batch of the size that is optimised for; kernels may depend on it.
        most: how many of the images are looked at.
    """

    def __init__(self, model: nn.Module, plain: nn.Module, images: Tensor, most: int = 16):
        self.images, self.most, self.plain = images, most, plain
        self.exact = copy.deepcopy(model).eval().to(images.device, torch.float32)
        self.chooses = bool(decisions(self.exact))
        self.paths = decision_paths(self.exact)
        self.plain_error = _norm_ratio(*self._both(plain)[:2])
        if not math.isfinite(self.plain_error):  # there is nothing to compare with
            kind = str(images.dtype).removeprefix("torch.")
            raise ValueError(
                f"the model's answers in {kind} are no numbers; where they outgrow it, dtype='bfloat16' and 'float32' "
                "hold larger ones"
            )

    def judged(self, what: str, candidate: nn.Module, steps: list[str]) -> "Verdict":
        """The verdict on a model that runs eagerly, so that its choices are seen; raises where it errs too much."""
        verdict = self.verdict(candidate, steps)
        if not verdict.right:
            raise RuntimeError(f"{what} errs by {verdict.error:.1e}, more than {verdict.allowed:.1e}: this is a bug")
        return verdict

    def verdict(self, candidate: nn.Module, steps: list[str]) -> "Verdict":
        """How far the answers of a model are from the exact ones with the same choices."""
        found, truth, chosen = self._both(candidate)
        return Verdict(_norm_ratio(found, truth), self.allowed(steps), truth, self._differing(chosen))

    def check_compiled(self, what: str, output: Tensor, verdict: "Verdict") -> None:
        """Refuse answers of a compiled model that are further from the exact ones than its eager form may be.

        What a compiled model chooses cannot be read. Where tokens are chosen it may therefore err, on the median image,
        twice as much as the plain model does in the same precision with choices of its own.
        """
        found = output[: self.most].float()
        error, allowed = _norm_ratio(found, verdict.truth), verdict.allowed
        if self.chooses:
            free = self._unheld(self.exact, self.images[: self.most].float())
            own = self._unheld(self.plain, self.images[: self.most])
            error, allowed = _median_ratio(found, free), max(allowed, 2 * _median_ratio(own, free) + 1e-2)
        if not error <= allowed:
            raise RuntimeError(f"{what} errs by {error:.1e}, more than {allowed:.1e}: this is a bug")

    @torch.inference_mode()
    def _unheld(self, model: nn.Module, images: Tensor) -> Tensor:
        return model(images).float()

    def allowed(self, steps: list[str]) -> float:
        """The largest error of a model after these steps, as a share of the outputs' norm."""
        rounding = 2 * self.plain_error + (FULL_SLACK if self.images.dtype == torch.float32 else HALF_SLACK)
        return max(rounding, fp8.TOLERANCE) if fp8.STEP in steps else rounding

    @torch.inference_mode()
    def _both(self, candidate: nn.Module) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The candidate's answers, the exact model's with the same choices, and these choices by path."""
        with recorded(candidate) as chosen:
            found = candidate(self.images)[: self.most].float()
        with held(self.exact, [each[: self.most] for each in chosen]), taps(self.exact, self.paths) as given:
            return found, self.exact(self.images[: self.most].float()), given

    @torch.inference_mode()
    def _differing(self, given: dict[str, Tensor]) -> int:
        if not self.chooses or not given:
            return 0
        with taps(self.exact, self.paths) as own:
            self.exact(self.images[: self.most].float())
        return int(differing(self.exact, given, own).sum())


class Verdict:
    """What a judge found.

    Attributes:
        error: of the outputs, as a share of their norm.
        allowed: the largest error that rounding explains.
        truth: the exact answers, with the choices that the judged model made.
        differing: images of those looked at whose tokens the exact model chooses otherwise.
    """

    def __init__(self, error: float, allowed: float, truth: Tensor, differing: int):
        self.error, self.allowed, self.truth, self.differing = error, allowed, truth, differing
        self.right = error <= allowed


def _norm_ratio(found: Tensor, truth: Tensor) -> float:
    return ((found - truth).norm() / truth.norm().clamp(min=1e-30)).item()


def _median_ratio(found: Tensor, truth: Tensor) -> float:
    """The error of the median image, as a share of its answer's norm."""
    each = (found - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1).clamp(min=1e-30)  # (B,)
    return each.median().item()
