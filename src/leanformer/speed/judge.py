"""Does a rewritten model give the same answers? Compared with the exact model, the choice of tokens held fixed.

Two tokens whose scores nearly tie may be chosen one way or the other after rounding, and either is right. So the exact
model is run with the choices that the judged model made, and only arithmetic is left to differ. What a compiled model
chose cannot be read, and it may choose otherwise for a few images: of these the median is taken.
"""

import copy

import torch
from torch import Tensor, nn

from ..core import decision_paths, taps
from ..core.reduce import decisions, differing, held, recorded
from . import fp8


class Judge:
    """Compares answers with those of the float32 model: a step may err as much as the plain low-precision model.

    Args:
        model: the fused model.
        plain: the same in the device's dtype.
        images: a batch of the size that is optimised for; kernels may depend on it.
        most: how many of the images are looked at.
    """

    def __init__(self, model: nn.Module, plain: nn.Module, images: Tensor, most: int = 16):
        self.images, self.most = images, most
        self.exact = copy.deepcopy(model).eval().to(images.device, torch.float32)
        self.chooses = bool(decisions(self.exact))
        self.paths = decision_paths(self.exact)
        self.plain_error = _norm_ratio(*self._both(plain)[:2])

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
        """Refuse answers of a compiled model that are further from the exact ones than its eager form may be."""
        found, truth = output[: self.most].float(), verdict.truth
        each = (found - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1).clamp(min=1e-30)  # (B,)
        error = each.median().item() if self.chooses else _norm_ratio(found, truth)
        if not error <= verdict.allowed:
            raise RuntimeError(f"{what} errs by {error:.1e}, more than {verdict.allowed:.1e}: this is a bug")

    def allowed(self, steps: list[str]) -> float:
        """The largest error of a model after these steps, as a share of the outputs' norm."""
        rounding = 2 * self.plain_error + 1e-4
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
