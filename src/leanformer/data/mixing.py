"""Mixup, cutmix and label smoothing: labels in, what the objective compares with out.

    mixup   λ x + (1 - λ) x_partner            cutmix   a box of x comes from x_partner, λ the share that stayed

The partner of image i is image B - 1 - i. λ and the box are drawn once a batch, as timm draws them; a view of another
size is mixed with the same partner, the same λ, and the box scaled to it. B batch.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch.nn.functional as F
from timm.data.mixup import cutmix_bbox_and_lam, mixup_target
from torch import Tensor, nn

from .batches import Batch, Plan
from .options import Augmentation


@dataclass(frozen=True)
class Mix:
    """How a batch is mixed: the share that an image keeps and, for cutmix, the box that comes from its partner."""

    share: float
    box: tuple[float, float, float, float] | None = None
    """Top, bottom, left and right, in shares of the sides."""

    def __call__(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) mixed in place with the batch in reverse order."""
        if self.share == 1:
            return images
        if self.box is None:
            partners = images.flip(0).mul_(1 - self.share)
            return images.mul_(self.share).add_(partners)
        height, width = images.shape[2:]
        top, bottom = (round(share * height) for share in self.box[:2])
        left, right = (round(share * width) for share in self.box[2:])
        images[:, :, top:bottom, left:right] = images.flip(0)[:, :, top:bottom, left:right]
        return images


class Mixing:
    """Mixup and cutmix where the recipe has them, else smoothed labels, else the labels as they are.

    Images without labels (-1) are mixed like others; there is nothing to mix of their labels.
    """

    def __init__(self, recipe: Augmentation, plan: Plan, model: nn.Module, labelled: bool = True):
        self.classes = int(model.num_classes)  # type: ignore[arg-type]
        self.smoothing, self.switch = recipe.label_smoothing, recipe.mixup_switch
        self.alphas = (recipe.mixup, recipe.cutmix)
        self.labelled = labelled
        micro = plan.batch_size // (plan.processes * plan.accumulate)
        if any(self.alphas) and micro % 2:
            raise ValueError(f"mixup pairs images, so a micro-batch must be even, not {micro}")

    def __call__(self, batch: Batch) -> Batch:
        """The batch mixed, all its views alike; its labels become targets."""
        if not any(self.alphas):
            smooths = self.labelled and self.smoothing
            return replace(batch, labels=soft_targets(batch.labels, self.classes, self.smoothing)) if smooths else batch
        mix = self.draw(tuple(batch.images.shape[2:]))
        images, views = mix(batch.images), {size: mix(view) for size, view in batch.views.items()}
        labels = batch.labels
        if self.labelled:
            labels = mixup_target(labels, self.classes, mix.share, self.smoothing)  # (B, classes)
        return replace(batch, images=images, labels=labels, views=views)

    def draw(self, size: tuple[int, ...]) -> Mix:
        """How the next batch, of images of this size, is mixed: from numpy's generator, draw by draw as timm does."""
        mixup, cutmix = self.alphas
        np.random.rand()  # whether to mix at all: always
        cuts = bool(cutmix) and (not mixup or np.random.rand() < self.switch)
        alpha = cutmix if cuts else mixup
        share = float(np.random.beta(alpha, alpha))
        if not cuts or share == 1:
            return Mix(share)
        (top, bottom, left, right), share = cutmix_bbox_and_lam(size, share)
        height, width = size
        return Mix(float(share), (top / height, bottom / height, left / width, right / width))


def soft_targets(targets: Tensor, classes: int, smoothing: float = 0.0) -> Tensor:
    """Class indices (B,) or soft labels (B, K) as distributions (B, K), smoothed towards the uniform one.

    >>> import torch
    >>> soft_targets(torch.tensor([1]), 2, smoothing=0.5)
    tensor([[0.2500, 0.7500]])
    """
    if targets.ndim == 1:
        targets = F.one_hot(targets.long(), classes)
    return targets.float() * (1 - smoothing) + smoothing / classes
