"""Mixup, cutmix and label smoothing: labels in, what the objective compares with out."""

import torch.nn.functional as F
from timm.data import Mixup
from torch import Tensor, nn

from .loader import Plan
from .options import Augmentation


class Mixing:
    """Mixup and cutmix by timm where the recipe has them, else smoothed labels, else the labels as they are."""

    def __init__(self, recipe: Augmentation, plan: Plan, model: nn.Module):
        self.classes = int(model.num_classes)  # type: ignore[arg-type]
        self.smoothing = recipe.label_smoothing
        self.mixup = None
        if recipe.mixup or recipe.cutmix:
            micro = plan.batch_size // (plan.processes * plan.accumulate)
            if micro % 2:
                raise ValueError(f"mixup pairs images, so a micro-batch must be even, not {micro}")
            self.mixup = Mixup(
                recipe.mixup, recipe.cutmix, switch_prob=recipe.mixup_switch, label_smoothing=self.smoothing,
                num_classes=self.classes,
            )  # fmt: skip

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.mixup is not None:
            return self.mixup(images, labels)
        if self.smoothing:
            hard = F.one_hot(labels, self.classes).float()  # (B, classes)
            return images, hard * (1 - self.smoothing) + self.smoothing / self.classes
        return images, labels
