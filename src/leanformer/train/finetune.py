"""Fine-tuning a lean model from its trained backbone, distilled: the settings meant for everyday use.

    leanformer train deit_small_patch16_224 --checkpoint deit_small.pth --apply METHOD \\
        --teacher self --recipe finetune --data imagenet/ --output runs/lean
"""

from typing import Any

from .recipe import Recipe


def finetune(epochs: int = 30, **settings: Any) -> Recipe:
    """30 epochs from a trained backbone: AdamW at 5e-4, methods at their final settings from the first update.

    >>> finetune(epochs=10, batch_size=256).epochs
    10
    """
    base = Recipe(epochs=epochs).replace(
        batch_size=1024,
        learning_rate=5e-4,
        min_learning_rate=1e-6,
        warmup_epochs=min(3, epochs / 5),
        weight_decay=0.02,
        clip_grad=1.0,
        ema=0.9998,
        method_schedules=False,
        crop_scale=(0.25, 1.0),
        color_jitter=0.2,
        erasing=0.0,
    )
    return base.replace(**settings)
