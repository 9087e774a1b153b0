"""LV-ViT (Jiang et al., NeurIPS 2021): the backbone of SiT's and EViT's larger models, trained with token labels.

    leanformer train --recipe lvvit_s --data imagenet/ --output runs/lvvit_s

SiT's paper has its teachers LV-ViT+ at 82.1 (Ti), 83.3 (S), 84.2 (M) and 85.7% (L) top-1; RePa's has LV-ViT-S at 81.4
without token labels and EViT's at 83.3 with them. 300 epochs at batch 1024; no training time is stated.
"""

from ...train.recipe import Recipe
from ..published import Published, publish

RECIPE = Recipe(batch_size=1024, learning_rate=1.6e-3, ema=0.99992, mixup=0.0, cutmix=0.0)
ROWS = {
    "lvvit_t": (0.1, ""),
    "lvvit_s": (0.1, "83.3"),
    "lvvit_m": (0.2, ""),
    "lvvit_l": (0.3, ""),
    "lvvit_plus_tiny": (0.1, "82.1"),
    "lvvit_plus_small": (0.1, "83.3"),
    "lvvit_plus_medium": (0.2, "84.2"),
    "lvvit_plus_large": (0.3, "85.7"),
}

publish(
    Published(
        name=name,
        model=name,
        recipe=RECIPE.replace(drop_path=drop),
        top1=top1,
        note="TokenLabeling's settings; the accuracies need token labels",
    )
    for name, (drop, top1) in ROWS.items()
)
