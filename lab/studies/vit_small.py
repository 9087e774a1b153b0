"""A ViT-S/16 grown from a trained ViT-Ti/16, trained on, and the same lean students made from it.

    python -m lab study vit_small --data pack:tiny_imagenet --checkpoint teacher.safetensors --precision bf16 --compile

Its rows beside those of `vit_tiny` show what a method costs a model of four times the size. The checkpoint is that
study's teacher, so that the grown one starts with what it knows; ImageNet weights of ViT-Ti do as well.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from leanformer.methods import EViT, RePa

from .growth import grow
from .student import DISTILLED, Student, Study, lean_student
from .vit_tiny import backbone, vit_tiny

STUDENTS = (
    "EViT 0.7, distilled",
    "RePa 0.75, distilled",
    "RePa 0.5, distilled",
    "SiT late, distilled",
    "RIFormer in 2 blocks, distilled",
    "ViT at 160 px, distilled",
    "EViT 0.5, distilled",
    "RePa 0.5 + EViT 0.7, distilled",
    "SiT late, recalibration",
    "EViT 0.9 at 160 px, distilled on mixtures",
)
"""The rows of `vit_tiny` that are repeated."""
RATE = 3e-5
"""Doubled weights want low rates: at those of the small model training makes students of a grown one worse."""


def vit_small(checkpoint: Path | None, **arguments: Any) -> Study:
    """The study; `checkpoint` is a trained ViT-Ti or its ImageNet weights, and the arguments are that model's.

    >>> vit_small(None).students[0].name
    'EViT 0.7, distilled'
    """
    small = vit_tiny(checkpoint, **arguments)
    rows = {student.name: student for student in small.students}
    return dataclasses.replace(
        small,
        name="vit_small",
        teacher=partial(_teacher, checkpoint, arguments),
        recipe=small.recipe.replace(learning_rate=RATE),
        teacher_learning_rate=RATE,
        students=(*(rows[name] for name in STUDENTS), _together()),
    )


def _together() -> Student:
    """What a small model does not stand."""
    methods = RePa(idle_ratio=0.75), EViT.finetune(keep_rate=0.7)
    return lean_student("RePa 0.75 + EViT 0.7", *methods, objective=DISTILLED, fit=512)


def _teacher(
    checkpoint: Path | None, arguments: dict[str, Any], num_classes: int, names: Sequence[str] | None = None
) -> nn.Module:
    """The backbone with the head for these classes, grown."""
    return grow(backbone(checkpoint, arguments, num_classes, names), "vit_small_patch16_224")
