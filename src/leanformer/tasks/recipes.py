"""Recipes for detectors and segmenters: one to start from, and small ones for Oxford Pets and CamVid.

leanformer train poolformer_s12 --task detection --detector retinanet:min_size=320,max_size=512
    --recipe pets --data pets/ --output runs/pets
leanformer train poolformer_s12 --task "segmentation:size=(352,480)" --segmenter fpn
    --recipe camvid --data camvid/ --output runs/camvid
"""

from typing import Any

from ..train.recipe import Recipe, plain


def dense(epochs: int = 12, **settings: Any) -> Recipe:
    """AdamW at 1e-4 for 12 epochs with 16 pictures an update, flipped at random: what fits any detector or segmenter.

    >>> dense(epochs=3).flip
    0.5
    """
    return plain(
        epochs=epochs, batch_size=16, learning_rate=1e-4, min_learning_rate=1e-6, warmup_epochs=min(0.5, epochs / 10),
        warmup_learning_rate=1e-6, weight_decay=0.05, clip_grad=1.0, flip=0.5,
    ).replace(**settings)  # fmt: skip


def pets(epochs: int = 24, **settings: Any) -> Recipe:
    """Detectors on Oxford Pets (3,680 pictures, one pet each): 24 epochs of random crops and colours.

    >>> pets().crop_scale
    (0.4, 1.0)
    """
    base = dense(
        epochs, learning_rate=2e-4, warmup_epochs=min(1, epochs / 10), crop_scale=(0.4, 1.0), crop_ratio=(3 / 4, 4 / 3),
        color_jitter=0.2,
    )  # fmt: skip
    return base.replace(**settings)


def camvid(epochs: int = 120, **settings: Any) -> Recipe:
    """Segmenters on CamVid (367 pictures): 120 epochs of random crops and colours, 8 pictures an update.

    >>> camvid().batch_size
    8
    """
    base = dense(
        epochs, batch_size=8, learning_rate=2e-4, warmup_epochs=min(5, epochs / 10), crop_scale=(0.25, 1.0),
        crop_ratio=(3 / 4, 4 / 3), color_jitter=0.3,
    )  # fmt: skip
    return base.replace(**settings)
