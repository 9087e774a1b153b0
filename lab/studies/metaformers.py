"""MetaFormers from scratch on small images (Tiny-ImageNet, native 64 pixels): do the papers' orderings hold there?

    stem stride 4 → 2, so that the maps are 32, 16, 8 and 4 wide: those of 128 pixels under the published stem

PoolFormer-S12 is the teacher. Which token mixer counts for how much: labels alone, every model from scratch. RIFormer
along its paper's road: labels, distillation, the affine, imitation, the teacher's weights. RePa at three ratios, alone
and with RIFormer.

    python -m lab study metaformers --data pack:tiny_imagenet --epochs 20 --teacher-epochs 20 --batch-size 512 \\
        --precision bf16 --compile
"""

from pathlib import Path
from typing import Any

from torch import nn

from leanformer.backbones import create
from leanformer.core import apply
from leanformer.methods import RePa, RIFormer
from leanformer.train import Recipe

from .riformer import student_of
from .student import DISTILLED, LABELS, Student, Study, lean_student
from .teachers import TRAINED_RATE, teacher_from

NATIVE: dict[str, Any] = {"img_size": 64, "stem": (7, 2, 3), "crop_pct": 1.0}
LARGER_SCALE: dict[str, Any] = {"layer_scale_init_values": 0.1}
"""For models made like PoolFormer: their published start of 1e-5 is for 300 epochs, and silences mixers for long."""
TEACHER = "poolformer_s12"
FROM_SCRATCH = {
    "IdentityFormer-S12": ("identityformer_s12", 74.6),
    "RandFormer-S12": ("randformer_s12", 76.6),
    "PoolFormerV2-S12": ("poolformerv2_s12", 78.0),
    "ConvFormer-S18": ("convformer_s18", 83.0),
    "CAFormer-S18": ("caformer_s18", 83.6),
}
"""Name → model and the paper's top-1 on ImageNet after 300 epochs."""
ROAD = {
    "no affine, labels": "table2/labels",
    "labels": "table3/labels",
    "hard distillation with labels": "table3/hard-labels",
    "hard distillation": "table3/hard",
    "soft distillation with labels": "table3/soft-labels",
    "soft distillation": "table3/soft",
    "imitation": "table4/feature80-relation20-layers4",
    "imitation, teacher's weights": "table7/affine-imitation",
    "teacher's weights": "ours/affine-alone",
    "imitation, teacher's weights, fitted": "ours/fitted",
}
"""RIFormer-S12 after each guideline of its paper, each with the setting that it is."""
REPA = {0.25: 76.8, 0.5: 74.3, 0.75: 70.5}
"""Idle ratio → the paper's top-1 of RePa-PoolFormer-S12 on ImageNet."""
FIT = 256
"""Images on which a student is fitted to the teacher."""
BOTH: dict[str, Any] = {"objective": f"{LABELS} + {DISTILLED}", "note": "distilled with labels"}


def metaformers(checkpoint: Path | None = None, **arguments: Any) -> Study:
    """The study; the arguments are those of every backbone: with other widths, `only` the rows of PoolFormer-S12.

    >>> [student.name for student in metaformers().students][:2]
    ['IdentityFormer-S12, labels', 'RandFormer-S12, labels']
    """
    given = {**NATIVE, **arguments}
    pooled = {**LARGER_SCALE, **given}
    return Study(
        name="metaformers",
        teacher=teacher_from(TEACHER, checkpoint, pooled),
        teacher_learning_rate=None if checkpoint is None else TRAINED_RATE,
        recipe=short(),
        students=(*_from_scratch(given), *_pooled(pooled), *_road(pooled), *_repa(pooled), _together()),
    )


def short() -> Recipe:
    """A short schedule without regularisation: what is gained by that would take more epochs to show.

    >>> short().epochs
    20
    """
    return Recipe(
        epochs=20, batch_size=512, learning_rate=1e-3, warmup_epochs=2, clip_grad=1.0, ema=0.998, drop_path=0.0,
        crop_scale=(0.35, 1.0), color_jitter=0.0, auto_augment=None, erasing=0.0, mixup=0.0, cutmix=0.0,
        label_smoothing=0.0,
    )  # fmt: skip


def _from_scratch(arguments: dict[str, Any]) -> list[Student]:
    return [_on_labels(name, model, arguments, top1) for name, (model, top1) in FROM_SCRATCH.items()]


def _pooled(arguments: dict[str, Any]) -> list[Student]:
    """For comparison: the teacher's architecture after a student's epochs alone, and the teacher after as many more."""
    return [_on_labels("PoolFormer-S12", TEACHER, arguments, 77.2), lean_student("PoolFormer-S12", **BOTH)]


def _on_labels(name: str, model: str, arguments: dict[str, Any], top1: float) -> Student:
    def make(teacher: nn.Module, epochs: int) -> nn.Module:
        return create(model, **{**arguments, "num_classes": teacher.num_classes})

    return Student(name=f"{name}, labels", make=make, objective=LABELS, teachers=(), paper=top1)


def _road(arguments: dict[str, Any]) -> list[Student]:
    return [student_of(row, f"RIFormer-S12, {name}", arguments) for name, row in ROAD.items()]


def _repa(arguments: dict[str, Any]) -> list[Student]:
    """From the teacher, fitted and distilled, with labels too; and from scratch on labels, as in the paper."""

    def students(ratio: float, top1: float) -> list[Student]:
        name, method = f"RePa-PoolFormer-S12 {ratio}", RePa(idle_ratio=ratio, rounding="floor")

        def scratch(teacher: nn.Module, epochs: int) -> nn.Module:
            return apply(create(TEACHER, **{**arguments, "num_classes": teacher.num_classes}), method)

        return [
            lean_student(name, method, objective=DISTILLED, fit=FIT),
            lean_student(name, method, fit=FIT, **BOTH),
            Student(name=f"{name}, labels", make=scratch, objective=LABELS, teachers=(), paper=top1),
        ]

    return [student for ratio, top1 in REPA.items() for student in students(ratio, top1)]


def _together() -> Student:
    """Neither a token mixer nor most of the FFN."""
    methods = RIFormer(layers=0), RePa(idle_ratio=0.75, rounding="floor")
    return lean_student("RIFormer-S12 + RePa 0.75", *methods, fit=FIT, **BOTH)
