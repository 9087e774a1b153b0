"""RePaFormer's Table 6: RePa-Swin under RetinaNet, Mask R-CNN and UperNet, with the settings they are trained with.

    leanformer train --task detection --detector retinanet swin_small_patch4_window7_224 --apply repa --recipe coco_1x …

The paper prints latencies of a picture and accuracies, no parameters and no MACs; those are ours. It says that the
detectors start from backbones pre-trained on ImageNet-1k and train on COCO for 12 epochs (the 1x schedule), and that
UperNet trains on ADE20K. It leaves open: the optimizer and its rates, the batch, the sizes of pictures, drop path, the
widths of the heads, how many iterations UperNet gets, and on what and at what size latencies were taken. What is open
is filled in from the settings of Swin's own detectors and segmenters, which the paper's rows for Swin point to.
"""

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

from torch import nn

from ...tasks.detectors import detector
from ...tasks.segmenters import segmenter
from ...train.recipe import Recipe, plain
from ..table import Row
from .models import idle_ratio_of

COCO, ADE20K = 80, 150
SIZES = {"RetinaNet": (3, 800, 1280), "Mask R-CNN": (3, 800, 1280), "UperNet": (3, 512, 512)}
"""Sizes at which MACs are counted and latencies taken: those that such models are usually counted at."""
DENSE = {"RetinaNet": "retinanet", "Mask R-CNN": "mask_rcnn", "UperNet": "upernet"}

TABLE6: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "RetinaNet": {
        "Swin-Small": ("61.7", ("37.2", "56.9", "39.6", "22.4", "40.5", "49.4")),
        "RePa-Swin-Small": ("53.8", ("38.3", "57.9", "40.7", "21.8", "42.0", "51.6")),
        "Swin-Base": ("82.0", ("38.9", "59.5", "41.3", "24.3", "43.6", "54.4")),
        "RePa-Swin-Base": ("66.7", ("39.8", "60.0", "42.1", "25.3", "43.7", "53.8")),
    },
    "Mask R-CNN": {
        "Swin-Small": ("62.5", ("45.5", "67.8", "49.9", "28.6", "49.2", "60.4")),
        "RePa-Swin-Small": ("53.8", ("43.6", "65.8", "47.8", "27.1", "47.0", "57.3")),
        "Swin-Base": ("82.6", ("45.8", "67.6", "50.3", "28.7", "48.9", "61.7")),
        "RePa-Swin-Base": ("69.4", ("44.8", "67.0", "49.4", "29.0", "48.5", "58.4")),
    },
    "UperNet": {
        "Swin-Small": ("36.3", ("47.6",)),
        "RePa-Swin-Small": ("32.1", ("45.7",)),
        "Swin-Base": ("45.6", ("48.1",)),
        "RePa-Swin-Base": ("38.6", ("46.9",)),
    },
}  # fmt: skip
"""Kind → backbone → milliseconds a picture, and on COCO AP, AP50, AP75 and those of small, medium and large objects, or
the mIoU on ADE20K, as printed."""


def build_dense(kind: str, backbone: str, fused: bool = True, **options: Any) -> nn.Module:
    """A model of Table 6, with fresh weights.

    Args:
        kind: RetinaNet, Mask R-CNN or UperNet.
        backbone: as the table calls it, such as RePa-Swin-Small.
        fused: whether a RePa backbone is fused.
        **options: of `lf.tasks.detector` or `lf.tasks.segmenter`.
    """
    from .tables import build

    plain_name = backbone.removeprefix("RePa-")
    lean = plain_name != backbone
    body = build(plain_name, idle_ratio_of(plain_name) if lean else None, fused and lean, num_classes=0)
    if kind == "UperNet":
        return segmenter(DENSE[kind], body, ADE20K, **options)
    return detector(DENSE[kind], body, COCO, **options)


def rows() -> Iterator[Row]:
    """The twelve rows of Table 6."""
    for kind, backbones in TABLE6.items():
        if kind == "UperNet" and find_spec("segmentation_models_pytorch") is None:
            continue  # its decoder comes with the extra `dense`
        for backbone, (latency, accuracies) in backbones.items():
            named = {"mIoU" if kind == "UperNet" else "AP": accuracies[0]}
            lean = backbone.startswith("RePa")
            yield Row(
                "Table 6",
                f"{kind}, {backbone}{', fused' if lean else ''}",
                partial(build_dense, kind, backbone),
                size=SIZES[kind],
                published={"ms/picture": latency, **named},
            )


def coco_1x(epochs: int = 12, **settings: Any) -> Recipe:
    """COCO's 1x schedule, 12 epochs, as Swin's own detectors train; the paper gives the epochs alone.

    Open in the paper, from Swin: AdamW at 1e-4 with weight decay 0.05, 16 pictures an update, 500 updates of warm-up,
    drop path 0.2 (Swin-S; 0.3 for Swin-B), flips, shorter side 800. Swin's rate falls to a tenth after epochs 8 and 11;
    a recipe's falls along a cosine.

    Args:
        epochs: in all.
        **settings: other settings of the recipe.

    >>> coco_1x().batch_size
    16
    """
    return plain(
        epochs=epochs, batch_size=16, learning_rate=1e-4, min_learning_rate=1e-6, weight_decay=0.05, drop_path=0.2,
        warmup_epochs=min(500 * 16 / 118_287, epochs), warmup_learning_rate=1e-7, flip=0.5,
    ).replace(**settings)  # fmt: skip


def ade20k_upernet(epochs: int = 127, **settings: Any) -> Recipe:
    """ADE20K as UperNet with Swin is usually trained; the paper gives the data set alone.

    Open in the paper, from Swin: 160,000 updates of 16 pictures (127 epochs of 20,210), AdamW at 6e-5 with weight decay
    0.01, 1,500 updates of warm-up, crops of 512, drop path 0.3, an auxiliary head (which we have not). Swin's rate
    falls linearly to 0; a recipe's falls along a cosine.

    Args:
        epochs: in all.
        **settings: other settings of the recipe.

    >>> ade20k_upernet().learning_rate
    6e-05
    """
    return plain(
        epochs=epochs, batch_size=16, learning_rate=6e-5, min_learning_rate=0.0, weight_decay=0.01, drop_path=0.3,
        warmup_epochs=min(1500 * 16 / 20_210, epochs), warmup_learning_rate=1e-9, flip=0.5, crop_scale=(0.25, 1.0),
        crop_ratio=(3 / 4, 4 / 3), color_jitter=0.4,
    ).replace(**settings)  # fmt: skip
