"""RIFormer's five guidelines: each row of Tables 1 to 5 and 7 to 9 as a setting that can be run at any scale.

    1  soft distillation without labels                     Tables 1, 2
    2  the affine alone is not enough                       Table 3
    3  module imitation                                     Tables 4, 7
    4  a logit teacher with a large receptive field         Table 5, and a CNN and a ConvFormer, which are ours
    5  all weights but the affine's from the teacher        Tables 7, 8, 9

The paper trains each for 120 epochs; `Setting.student` shortens the imitation terms along with the run. Pyramid ViG-B,
one of Table 5's four teachers, is in no library that we build on: its two rows are not here.

    python -m lab study riformer --data pack:tiny_imagenet --set img_size=64 --epochs 12 --only "table5/|table9/" \\
        --set swin_base_patch4_window7_224.depths="(2,2,6,2)" --set gfnet_h_b.depth="(2,2,6,2)" \\
        --set logits=gfnet_h_b

Outside Table 5 the paper's teacher of the logits is GFNet-H-B: `--set logits=gfnet_h_b`. Without it the trained
PoolFormer-S12 gives them, and the paper's top-1 beside a row is of another teacher.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from torch import nn

from leanformer.backbones import create
from leanformer.core import apply
from leanformer.methods import RIFormer
from leanformer.train import Recipe

from .student import DISTILLED, Student, Study
from .teachers import TRAINED_RATE, apart, teacher_from, teachers_by_name

PAPER_EPOCHS = 120
AFFINE = RIFormer(start="paper", relative=False)
"""The paper's: its Eq. 6 and 8 are plain means of squares."""
OURS = {"start": "fit", "relative": True}
IDENTITY = RIFormer(identity=True, layers=0)
GFNET, POOLFORMER = "gfnet_h_b", "poolformer_s12"
DEPTHS, DIMS = (2, 2, 6, 2), (64, 128, 320, 512)
"""Of PoolFormer-S12."""
Slimmer = Literal["", "depth", "width"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One row: the student, its method, its two teachers, and the paper's top-1.

    >>> SETTINGS["table4/feature80-relation20-layers4"].top1
    75.13
    """

    backbone: str = POOLFORMER
    """The student's backbone; its token mixers are those that the imitation teacher keeps."""
    slimmer: Slimmer = ""
    """A quarter of the blocks less, all from the third stage, or 5/6 of the widths; which blocks PoolFormer-S9 drops is
    unsaid."""
    method: RIFormer | None = None
    """None: the backbone as it is."""
    teacher: str | None = None
    """Of the logits; without one the labels count."""
    imitation: bool = False
    """Whether the backbone, trained, is the student's imitation teacher."""
    initialise: bool = False
    """Whether the student starts from the imitation teacher's weights."""
    top1: float | None = None
    """The paper's, on ImageNet-1k after 120 epochs."""

    def student(self, epochs: float, imitated: nn.Module | None = None, **arguments: Any) -> nn.Module:
        """The student for a run of so many epochs; `imitated` is the trained backbone where one is needed.

        >>> small = SETTINGS["table3/soft"].student(12, num_classes=10, depths=(1, 1, 1, 1))
        """
        if (self.imitation or self.initialise) and imitated is None:
            raise ValueError(f"this row imitates a trained {self.backbone}; train that first and give it")
        model = imitated if self.initialise else create(self.backbone, **slimmed(self.slimmer, arguments))
        assert model is not None
        return model if self.method is None else apply(model, self._shortened(self.method, epochs / PAPER_EPOCHS))

    def teachers(self, logits: nn.Module | None = None, imitated: nn.Module | None = None) -> dict[str, nn.Module]:
        """The teachers by the names under which the objective knows them."""
        if self.teacher is not None and logits is None:
            raise ValueError(f"this row needs a teacher of logits; the paper's is {self.teacher}, any will do")
        given = {"teacher": logits if self.teacher else None, "imitation": imitated if self.imitation else None}
        return {name: model for name, model in given.items() if model is not None}

    def _shortened(self, method: RIFormer, share: float) -> RIFormer:
        return method.replace(
            feature_epochs=method.feature_epochs * share, relation_epochs=method.relation_epochs * share
        )


def slimmed(slimmer: Slimmer, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a PoolFormer that is slimmed by its depth or by its width.

    >>> slimmed("depth", {}), slimmed("width", {})
    ({'depths': (2, 2, 3, 2)}, {'dims': (54, 106, 266, 426)})
    """
    if slimmer == "depth":
        depths = list(arguments.get("depths", DEPTHS))
        depths[2] = max(1, depths[2] - round(sum(depths) / 4))
        return {**arguments, "depths": tuple(depths)}
    if slimmer == "width":
        return {**arguments, "dims": tuple(2 * round(dim * 5 / 12) for dim in arguments.get("dims", DIMS))}
    return arguments


def _distilled(method: RIFormer, top1: tuple[float, ...]) -> dict[str, Setting]:
    """The five rows of Tables 2 and 3: no teacher, then hard and soft, with labels and without."""
    method = method.replace(layers=0)
    rows = {"labels": Setting(method=method, top1=top1[0])}
    for kind, labels, alone in (("hard", top1[1], top1[2]), ("soft", top1[3], top1[4])):
        chosen = method.replace(distillation=kind)
        rows[f"{kind}-labels"] = Setting(method=chosen.replace(label_weight=0.5), teacher=GFNET, top1=labels)
        rows[kind] = Setting(method=chosen, teacher=GFNET, top1=alone)
    return rows


def _imitating(feature: int, relation: int, layers: int, top1: float | None, **changes: Any) -> Setting:
    method = AFFINE.replace(layers=0)  # the row of Table 3 that learns from soft answers alone, trained once
    if feature:
        method = AFFINE.replace(feature_epochs=feature, relation_epochs=relation, layers=layers)
    return Setting(**{"method": method, "teacher": GFNET, "imitation": feature > 0, "top1": top1, **changes})


def _by_teacher(found: dict[str, tuple[float | None, float | None]]) -> dict[str, Setting]:
    """Two rows for each teacher of the logits: alone, and with imitation."""
    rows = {}
    for teacher, (without, imitating) in found.items():
        rows[f"{teacher}"] = _imitating(0, 0, 0, without, teacher=teacher)
        rows[f"{teacher}-imitation"] = _imitating(80, 20, 4, imitating, teacher=teacher)
    return rows


TABLE5: dict[str, tuple[float | None, float | None]] = {
    "poolformer_m48": (73.63, 74.83), "swin_base_patch4_window7_224": (73.12, 74.52), GFNET: (74.07, 75.13),
}  # fmt: skip
OUR_TEACHERS: dict[str, tuple[float | None, float | None]] = {"resnet50": (None, None), "convformer_s18": (None, None)}
"""A CNN and a MetaFormer beside the paper's."""
FINAL = _imitating(80, 20, 4, 75.36, initialise=True)
"""All five guidelines."""
ALONE = _imitating(0, 0, 0, None, initialise=True)
"""The same start, without imitation."""
FEATURES = IDENTITY.replace(layers=4)
BY_TABLE: dict[str, dict[str, Setting]] = {
    "table1": {"pooling": Setting(top1=75.01), "identity": Setting(method=IDENTITY, top1=72.31)},
    "table2": _distilled(IDENTITY, (72.31, 73.51, 72.86, 73.64, 74.05)),
    "table3": _distilled(AFFINE, (72.25, 73.44, 72.77, 72.10, 74.07)),
    "table4": {
        f"feature{feature}-relation{relation}-layers{layers}": _imitating(feature, relation, layers, top1)
        for feature, relation, layers, top1 in (
            (0, 0, 0, 74.07), (40, 0, 6, 74.49), (60, 0, 6, 74.77), (80, 0, 6, 74.81), (80, 10, 6, 75.08),
            (80, 20, 6, 74.82), (80, 40, 6, 75.00), (80, 20, 4, 75.13),
        )
    },
    "table5": _by_teacher(TABLE5),
    "table7": {
        "identity": Setting(method=IDENTITY, teacher=GFNET, top1=74.05),
        "identity-features": Setting(method=FEATURES, teacher=GFNET, imitation=True, initialise=True, top1=74.90),
        "affine-imitation": FINAL,
    },
    "table8": {
        "poolformer_s12": Setting(top1=75.01),
        "poolformer_s9": Setting(slimmer="depth", teacher=GFNET, top1=74.78),
        "poolformer_xs12": Setting(slimmer="width", teacher=GFNET, top1=75.11),
        "riformer_s12": FINAL,
    },
    "table9": {
        "12-none": Setting(backbone="poolformerv2_s12", method=AFFINE.replace(layers=0), top1=72.75),
        "12-randformer": _imitating(80, 20, 4, 75.62, backbone="randformer_s12", initialise=True),
        "12-poolformerv2": _imitating(80, 20, 4, 75.87, backbone="poolformerv2_s12", initialise=True),
        "18-none": Setting(backbone="convformer_s18", method=AFFINE.replace(layers=0), top1=75.01),
        "18-convformer": _imitating(80, 20, 4, 77.53, backbone="convformer_s18", initialise=True),
        "18-caformer": _imitating(80, 20, 4, 77.26, backbone="caformer_s18", initialise=True),
    },
    # not in the paper: other teachers of the logits
    "teachers": _by_teacher(OUR_TEACHERS),
    # not in the paper: losses relative to the teacher's features, an affine that starts where least squares puts it,
    # and what imitation adds to each start
    "ours": {
        "affine-alone": ALONE,
        "relative": dataclasses.replace(FINAL, method=FINAL.method.replace(relative=True), top1=None),  # type: ignore[union-attr]
        "fitted": dataclasses.replace(FINAL, method=FINAL.method.replace(**OURS), top1=None),  # type: ignore[union-attr]
        "fitted-alone": dataclasses.replace(ALONE, method=ALONE.method.replace(**OURS)),  # type: ignore[union-attr]
    },
}  # fmt: skip
SETTINGS: dict[str, Setting] = {
    f"{table}/{row}": value for table, rows in BY_TABLE.items() for row, value in rows.items()
}
"""Every row by its name, 'table4/feature80-relation20-layers4'."""


NAMED = tuple(dict.fromkeys((*TABLE5, *OUR_TEACHERS, "randformer_s12", "poolformerv2_s12", "caformer_s18")))
"""The study's other teachers: of the logits in Table 5, and the backbones of Table 9."""


def riformer(checkpoint: Path | None = None, logits: str = "", **arguments: Any) -> Study:
    """The rows as a study on PoolFormer-S12, at any scale.

    Args:
        checkpoint: weights that PoolFormer-S12 starts from.
        logits: the teacher of the logits where a table does not compare teachers, `gfnet_h_b` in the paper; by default
            the trained PoolFormer, so that no second teacher has to be trained; the paper's top-1 beside such a row
            is then of another teacher.
        arguments: those of every backbone; of another teacher alone as `gfnet_h_b.depth`.

    >>> riformer(depths=(1, 1, 1, 1)).students[0].name
    'table1/pooling'
    """
    own, apiece = apart(arguments)
    if logits and logits not in NAMED:
        raise ValueError(f"logits is '{logits}'; choose one of {', '.join(NAMED)}")
    size = {key: own[key] for key in ("img_size",) if key in own}
    backbones = {name: {**own, **apiece.get(name, {})} for name in NAMED if name in ROW_BACKBONES}
    return Study(
        name="riformer",
        teacher=teacher_from(POOLFORMER, checkpoint, own),
        teacher_learning_rate=None if checkpoint is None else TRAINED_RATE,
        recipe=Recipe(mixup=0.0, cutmix=0.0, label_smoothing=0.0, auto_augment=None, color_jitter=0.0, erasing=0.0),
        students=tuple(student_of(name, name, own, logits) for name in SETTINGS),
        others=teachers_by_name(NAMED, size, {**apiece, **backbones}),
    )


ROW_BACKBONES = {setting.backbone for setting in SETTINGS.values()}


def student_of(row: str, name: str, arguments: dict[str, Any], logits: str = "") -> Student:
    """A row as a student, under a name of its own, of a backbone that is built with these arguments.

    Args:
        row: the setting.
        name: the student's.
        arguments: of its backbone.
        logits: which other teacher gives the logits where the row does not compare teachers; "" is the study's own.

    >>> student_of("table3/soft", "RIFormer, soft", {}).teachers
    ('teacher',)
    """
    setting = SETTINGS[row]
    base = setting.backbone if setting.initialise and setting.backbone != POOLFORMER else ""
    compared = row.startswith("table5/") or setting.teacher in OUR_TEACHERS
    asked = (setting.teacher or "") if compared else logits
    apart_from_base = setting.teacher is not None and asked != base

    def make(trained: nn.Module, epochs: int) -> nn.Module:
        return setting.student(epochs, trained, **{**arguments, "num_classes": trained.num_classes})

    roles = {"teacher": setting.teacher is not None and not apart_from_base, "imitation": setting.imitation}
    return Student(
        name=name,
        make=make,
        objective=DISTILLED if setting.method is None and setting.teacher else None,
        teachers=tuple(role for role, met in roles.items() if met),
        made_from=base,
        others={"teacher": asked} if apart_from_base else {},
        calibrate=512 if row.startswith("ours/fitted") else 0,
        paper=setting.top1,
    )
