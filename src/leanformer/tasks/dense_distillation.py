"""What a detector or a segmenter learns from one whose backbone is unchanged.

    pyramid   mean over the maps of mean (S_l - T_l)²        S_l, T_l maps (B, C, H_l, W_l) of student and teacher
    pixels    tau² mean over the pixels of KL(softmax(t / tau) ‖ softmax(s / tau))        s, t logits (B, K, H, W)

Both see the same pictures at the same sizes. A teaching detector is only run up to its maps.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Step
from ..layers.losses import distil
from ..train.objectives import FromTeacher, logits_of, objective

PLACES = ("backbone", "features")
"""Where detectors and segmenters have the module that gives their maps."""


class Maps(nn.Module):
    """A detector up to its maps; what it answers is not used, what its maps are is tapped."""

    def __init__(self, detector: nn.Module):
        super().__init__()
        self.transform: Any = detector.transform
        self.backbone: Any = detector.backbone
        for name in ("card", "pretrained_cfg", "num_classes"):
            if hasattr(detector, name):
                setattr(self, name, getattr(detector, name))

    def forward(self, images: list[Tensor] | Tensor) -> Any:
        """Maps of images between 0 and 1, or of a batch (B, C, H, W) as the network sees it."""
        return self.backbone(images if isinstance(images, Tensor) else self.transform(images)[0].tensors)


@objective("pyramid")
class PyramidDistillation(FromTeacher):
    """Mean squared difference of the feature maps, a mean over the maps.

    >>> PyramidDistillation(weight=0.5).weight
    0.5
    """

    def __init__(self, weight: float = 1.0, teacher: str = "teacher"):
        super().__init__(weight, teacher)
        self.at = ""

    def prepare(self, student: nn.Module) -> None:
        """Find where the student has its maps.

        Args:
            student: A detector or a segmenter.
        """
        self.at = place_of_maps(student)

    def teacher_form(self, name: str, teacher: nn.Module) -> nn.Module:
        whole = name != self.teacher or self.at != "backbone"
        return teacher if whole or isinstance(teacher, Maps) else Maps(teacher)

    def student_taps(self) -> frozenset[str]:
        return frozenset({self.at})

    def teacher_taps(self) -> dict[str, frozenset[str]]:
        return {self.teacher: frozenset({self.at})}

    def forward(self, step: Step) -> dict[str, Tensor]:
        mine, theirs = (_maps(view.taps[self.at]) for view in (step.student, step.teacher(self.teacher)))
        if [x.shape for x in mine] != [x.shape for x in theirs]:
            shapes = [[tuple(x.shape) for x in maps] for maps in (mine, theirs)]
            raise ValueError(
                f"the student's maps are {shapes[0]}, the teacher's {shapes[1]}: both need the same image sizes and "
                "maps of the same widths"
            )
        losses = [F.mse_loss(s.float(), t.float()) for s, t in zip(mine, theirs)]
        return {"pyramid": self.weight * torch.stack(losses).mean()}


@objective("pixels")
class PixelDistillation(FromTeacher):
    """The teacher's distribution over the classes at every pixel, at a temperature.

    >>> PixelDistillation(temperature=2.0).temperature
    2.0
    """

    def __init__(self, temperature: float = 1.0, weight: float = 1.0, teacher: str = "teacher"):
        super().__init__(weight, teacher)
        self.temperature = temperature

    def forward(self, step: Step) -> dict[str, Tensor]:
        student, teacher = (logits_of(view.output) for view in (step.student, step.teacher(self.teacher)))
        return {"pixels": self.weight * pixel_divergence(student, teacher, self.temperature)}


def pixel_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """tau² KL(teacher ‖ student) at temperature tau, a mean over the pixels of logits (B, K, H, W).

    >>> pixel_divergence(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3, 3), 2.0).item()
    0.0
    """
    s, t = (logits.float().movedim(1, -1).flatten(0, 2) for logits in (student, teacher))  # (B·H·W, K)
    return distil(s, t, "soft", temperature)


def place_of_maps(model: nn.Module) -> str:
    """The path of the module of a detector or a segmenter that gives its maps."""
    for place in PLACES:
        if isinstance(getattr(model, place, None), nn.Module):
            return place
    raise ValueError(f"{type(model).__name__} is neither a detector nor a segmenter: it has no maps to be compared")


def _maps(found: Any) -> list[Tensor]:
    return list(found.values()) if isinstance(found, dict) else list(found)
