"""A trained ViT-Ti/16 moved to a small data set (Tiny-ImageNet at 224), and all five systems made from it.

Every student starts from the teacher, once with the method's own objective and once on labels alone. Some read fewer
pixels than their teacher does: the images of such data sets hardly fill 224.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

import leanformer as lf
from leanformer.backbones import create, load, resize, with_head
from leanformer.core import Method, apply, has_card
from leanformer.methods import EViT, RePa, RIFormer, SiT

from .student import DISTILLED, LABELS, Student, Study, lean_student


def vit_tiny(checkpoint: Path | None, **arguments: Any) -> Study:
    """The study; `checkpoint` holds ImageNet weights of vit_tiny_patch16_224.

    >>> len(vit_tiny(None).students) > 40
    True
    """
    return Study(
        name="vit_tiny",
        teacher=partial(backbone, checkpoint, arguments),
        recipe=lf.recipes.finetune(
            learning_rate=5e-4,
            mixup=0.0,
            cutmix=0.0,
            label_smoothing=0.0,
            auto_augment=None,
            color_jitter=0.0,
            crop_scale=(0.5, 1.0),
        ),
        teacher_learning_rate=1e-4,
        students=(*_evit(), *_sit(), *_repa(), *_riformer(), *_together(), *_smaller(), *_patient()),
    )


def backbone(
    checkpoint: Path | None, arguments: dict[str, Any], num_classes: int, names: Sequence[str] | None = None
) -> nn.Module:
    """A ViT-Ti with a head for these classes: from ImageNet's weights, or one that was trained for them as it is.

    >>> backbone(None, {"depth": 1}, 10).num_classes
    10
    """
    if checkpoint is None or not has_card(checkpoint):
        return with_head(create("vit_tiny_patch16_224", checkpoint, **arguments), num_classes, names)
    if arguments:
        raise ValueError(f"{checkpoint} says itself how it was built: give no arguments with it")
    model: Any = load(checkpoint)
    return model if model.num_classes == num_classes else with_head(model, num_classes, names)


def _evit() -> list[Student]:
    rows = []
    for rate in (0.9, 0.8, 0.7, 0.6, 0.5):
        for fused in (True, False):
            method = EViT.finetune(keep_rate=rate, fuse_tokens=fused)
            name = f"EViT {rate}{'' if fused else ' without fusion'}"
            rows += [lean_student(name, method, objective=objective) for objective in (DISTILLED, LABELS)]
    return rows


def _sit() -> list[Student]:
    rows = []
    for where, at in (("early", (1, 2, 3)), ("late", (7, 9, 10))):
        method = SiT(at=at)
        rows += [
            lean_student(f"SiT {where}", method, objective=None, note="recalibration"),
            lean_student(f"SiT {where}", method, objective=DISTILLED),
            lean_student(f"SiT {where}", method, objective=LABELS),
        ]
    return rows


def _repa() -> list[Student]:
    rows = []
    for ratio in (0.25, 0.5, 0.75):
        method = RePa(idle_ratio=ratio)
        rows += [
            lean_student(f"RePa {ratio}", method, objective=DISTILLED, fit=512),
            lean_student(f"RePa {ratio}", method, objective=DISTILLED, note="distilled from a cold start"),
            lean_student(f"RePa {ratio}", method, objective=LABELS, fit=512),
        ]
    return rows


def _riformer() -> list[Student]:
    rows = []
    for blocks in (2, 4, 6):
        method = RIFormer(blocks=tuple(range(blocks)), relative=True, feature_epochs=1e9, relation_epochs=3)
        name = f"RIFormer in {blocks} blocks"
        rows += [
            lean_student(name, method, objective=None, fit=512, note="imitation"),
            lean_student(name, method, objective=DISTILLED, fit=512),
            lean_student(name, method, objective=LABELS, fit=512),
        ]
    return rows


def _together() -> list[Student]:
    evit, late, early = EViT.finetune(keep_rate=0.7), SiT(at=(7, 9, 10)), RIFormer(blocks=(0, 1), relative=True)
    light, half = RePa(idle_ratio=0.25), RePa(idle_ratio=0.5)
    pairs: dict[str, tuple[Method, ...]] = {
        "RePa 0.25 + EViT 0.7": (light, evit),
        "RePa 0.5 + EViT 0.7": (half, evit),
        "RePa 0.5 + SiT late": (half, late),
        "RIFormer in 2 blocks + EViT 0.7": (early, evit),
        "RIFormer in 2 blocks + SiT late": (early, late),
        "RIFormer in 2 blocks + RePa 0.25 + EViT 0.7": (early, light, evit),
    }
    return [lean_student(name, *methods, objective=DISTILLED, fit=512) for name, methods in pairs.items()]


def _smaller() -> list[Student]:
    """Students of smaller images, the positions resampled; their teacher sees the same crops at its own size.

    At 224 it is the teacher itself: what another training does to it, and what it gains by `lf.optimize` alone.
    """
    rows = []
    for size, rates in ((224, (1.0,)), (192, (1.0, 0.7)), (160, (1.0, 0.9, 0.8)), (128, (1.0,))):
        for rate in rates:
            name = f"{f'EViT {rate}' if rate < 1 else 'ViT'} at {size} px"
            rows.append(Student(name=f"{name}, distilled", make=partial(_resized, size, rate), objective=DISTILLED))
    return rows


def _patient() -> list[Student]:
    """For long schedules: the teacher answers for mixtures of images, of which there is no end (Beyer et al., 2022)."""
    rows = {student.name: student for student in (*_evit(), *_smaller())}
    names = ("EViT 0.8, distilled", "EViT 0.7, distilled", "ViT at 160 px, distilled", "EViT 0.9 at 160 px, distilled")
    return [dataclasses.replace(rows[name], name=f"{name} on mixtures", changes={"mixup": 0.8}) for name in names]


def _resized(size: int, rate: float, teacher: nn.Module, epochs: int) -> nn.Module:
    methods = (EViT.finetune(keep_rate=rate),) if rate < 1 else ()
    return apply(resize(teacher, size), *methods)
