"""A ViT-S/16 grown from a trained ViT-Ti/16, moved to the same data, and the same lean students made from it.

    leanformer study vit_small --data pack:tiny_imagenet --checkpoint vit_tiny.safetensors --precision bf16 --compile

Its rows beside those of `vit_tiny` show what a method costs a model of four times the size.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ..backbones import create, with_head
from ..methods import EViT, RePa
from .growth import grow
from .study import Student, Study
from .vit_tiny import DISTILLED, lean_student, vit_tiny

STUDENTS = (
    "EViT 0.7, distilled",
    "EViT 0.5, distilled",
    "RePa 0.5, distilled",
    "RePa 0.75, distilled",
    "SiT late, recalibration",
    "SiT late, distilled",
    "RIFormer in 2 blocks, distilled",
    "RePa 0.5 + EViT 0.7, distilled",
)
"""The rows of `vit_tiny` that are repeated."""
RATES = (0.8, 0.7)
"""EViT's keep rates beside RePa 0.75: what a small model does not stand."""


def vit_small(checkpoint: Path | None, **arguments: Any) -> Study:
    """The study; `checkpoint` holds ImageNet weights of vit_tiny_patch16_224, and the arguments are that model's.

    >>> vit_small(None).students[0].name
    'EViT 0.7, distilled'
    """
    small = vit_tiny(checkpoint, **arguments)
    rows = {student.name: student for student in small.students}
    return dataclasses.replace(
        small,
        name="vit_small",
        teacher=partial(_teacher, checkpoint, arguments),
        students=(*(rows[name] for name in STUDENTS), *_together()),
    )


def _together() -> list[Student]:
    pairs = {rate: (RePa(idle_ratio=0.75), EViT.finetune(keep_rate=rate)) for rate in RATES}
    return [lean_student(f"RePa 0.75 + EViT {r}", *pair, objective=DISTILLED, fit=512) for r, pair in pairs.items()]


def _teacher(
    checkpoint: Path | None, arguments: dict[str, Any], num_classes: int, names: Sequence[str] | None = None
) -> nn.Module:
    """The backbone with the head for these classes, grown."""
    small = with_head(create("vit_tiny_patch16_224", checkpoint, **arguments), num_classes, names)
    return grow(small, "vit_small_patch16_224")
