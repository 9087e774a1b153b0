"""EViT's tables as students of one trained DeiT, each row at any scale.

    table2   keep rates with the fused token and without     table4   other places at one cost
    table3b  LV-ViT with token labels                        table6a  larger images at the cost of smaller ones
    table6b  larger images and LV-ViT with token labels      table7   from a trained DeiT, the paper's oracle

    python -m lab study evit --data pack:tiny_imagenet --set backbone=deit_tiny_patch16_224 --set img_size=112 \\
        --set lvvit=lvvit_t --epochs 30 --teacher-epochs 30 --precision bf16 --compile --seeds 0 1

All but table7's oracle start from random weights, as in the paper, and the keep rate falls over a third of the run,
after a thirtieth of it. Table 5 and the longer rows of Table 7 are `table7/scratch` and `table7/oracle` with 1.5 and 2
times the `--epochs`. With `img_size=56`, `patch_size=4` and `lvvit_t.patch_size=4` every row has the paper's tokens.
With `oracle=True` the rows of Tables 2, 4 and 6a start from the trained DeiT as well, and are named so: not the
paper's, but a few epochs tell them apart. Table 1 and Figure 1 need no training: `python -m lab training-free` and
`python -m lab figure removed-tokens`. The annotator of token labels is the trained DeiT.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from leanformer.backbones import create, resize
from leanformer.core import apply, input_of
from leanformer.methods import EViT
from leanformer.papers.evit.tables import LARGER, LOCATIONS, LV, LV_LARGER, WITH_FUSION, WITHOUT_FUSION, Setting
from leanformer.papers.lvvit import TOKEN_LABELS
from leanformer.train import Recipe

from .student import LABELS, Make, Student, Study
from .teachers import TRAINED_RATE, apart, teacher_from

ORACLE = " from the trained DeiT"
"""What the names of such rows end in."""
BACKBONE, LVVIT = "deit_small_patch16_224", "lvvit_s"
START, FALL = 10 / 300, 100 / 300
"""Shares of a run: until the keep rate begins to fall, and while it falls."""
PATCH = 16
"""Of every model that no `patch_size` is asked of; a quarter of all sizes and patches leaves the paper's tokens."""
Fresh = Callable[[nn.Module, Setting], nn.Module]


def evit(
    checkpoint: Path | None = None, backbone: str = BACKBONE, lvvit: str = LVVIT, oracle: bool = False, **arguments: Any
) -> Study:
    """The study.

    Args:
        checkpoint: weights that the teacher starts from.
        backbone: the DeiT.
        lvvit: the LV-ViT of Tables 3b and 6b.
        oracle: whether the rows of Tables 2, 4 and 6a start from the trained DeiT.
        arguments: those of the DeiT; the LV-ViT's as `lvvit_t.embed_dim`, and its image size is the DeiT's.

    >>> evit().students[0].name
    'table2/0.9, labels'
    """
    own, apiece = apart(arguments)
    if apiece.keys() - {lvvit}:
        raise ValueError(f"this study has no model '{min(apiece.keys() - {lvvit})}'; beside the DeiT: {lvvit}")
    size = {key: own[key] for key in ("img_size",) if key in own}
    deit, labelled = _scratch(backbone, own), _scratch(lvvit, {**size, **apiece.get(lvvit, {})})
    return Study(
        name="evit",
        teacher=teacher_from(backbone, checkpoint, own),
        teacher_learning_rate=None if checkpoint is None else TRAINED_RATE,
        recipe=Recipe(learning_rate=1e-3, clip_grad=1.0, mixup=0.0, cutmix=0.0, label_smoothing=0.0, erasing=0.0,
                      auto_augment=None, color_jitter=0.0, crop_scale=(0.35, 1.0)),
        students=(*_on_labels(_trained(own) if oracle else deit, ORACLE if oracle else ""), *_oracle(deit),
                  *_labelled(labelled)),
    )  # fmt: skip


def larger(img_size: int, setting: Setting, patch: int = PATCH) -> int:
    """The size of a row's images where those of 224 pixels are `img_size`: the nearest number of whole patches.

    >>> larger(128, LARGER[2]), larger(128, LARGER[3]), larger(56, LARGER[3], patch=4)
    (160, 176, 76)
    """
    return max(1, (2 * img_size * setting.size + 224 * patch - 1) // (2 * 224 * patch)) * patch


def _scratch(name: str, arguments: dict[str, Any]) -> Fresh:
    """A model of that name with random weights, at the size of a row's images."""

    def fresh(teacher: Any, setting: Setting) -> nn.Module:
        size = larger(input_of(teacher)["input_size"][1], setting, arguments.get("patch_size", PATCH))
        return create(name, **{**arguments, "img_size": size, "num_classes": teacher.num_classes})

    return fresh


def _trained(arguments: dict[str, Any]) -> Fresh:
    """The trained DeiT, at the size of a row's images."""

    def trained(teacher: Any, setting: Setting) -> nn.Module:
        whole = input_of(teacher)["input_size"][1]
        size = larger(whole, setting, arguments.get("patch_size", PATCH))
        return resize(teacher, size) if size != whole else copy.deepcopy(teacher)

    return trained


def _lean(fresh: Fresh, setting: Setting, fused: bool = True) -> Make:
    """A row's student: EViT, if the row keeps less than all, with the paper's schedule in proportion to the run."""
    at = None if setting.layers == (4, 7, 10) else tuple(layer - 1 for layer in setting.layers)
    keep = setting.keep
    if isinstance(keep, tuple) and len(set(keep)) == 1:
        keep = keep[0]  # written as in Table 2, of which it is a row too: trained once

    def make(teacher: nn.Module, epochs: int) -> nn.Module:
        method = EViT(keep_rate=keep, at=at, fuse_tokens=fused, start_epoch=START * epochs, shrink_epochs=FALL * epochs)
        model = fresh(teacher, setting)
        return apply(model, method) if setting.keep != 1 else model

    return make


def _row(name: str, make: Make, setting: Setting, start: str = "") -> Student:
    paper = None if start else float(setting.top1)
    return Student(name=f"{name}, labels{start}", make=make, objective=LABELS, teachers=(), paper=paper)


def _on_labels(deit: Fresh, start: str) -> list[Student]:
    rows = []
    for fused, settings in ((True, WITH_FUSION), (False, WITHOUT_FUSION)):
        for setting in settings:
            if setting.keep != 1:
                name = f"table2/{setting.keep}{'' if fused else ' without fusion'}"
                rows.append(_row(name, _lean(deit, setting, fused), setting, start))
    rows.append(_row("table2/1.0", _lean(deit, WITHOUT_FUSION[0]), WITHOUT_FUSION[0], start))
    for setting in LOCATIONS:
        rows.append(_row(f"table4/at {'-'.join(map(str, setting.layers))}", _lean(deit, setting), setting, start))
    for setting in LARGER[1:]:
        rows.append(_row(f"table6a/{setting.keep} at {setting.size}", _lean(deit, setting), setting, start))
    return rows


def _oracle(deit: Fresh) -> list[Student]:
    setting = WITH_FUSION[2]

    def trained(teacher: nn.Module, setting: Setting) -> nn.Module:
        return teacher

    start = Setting(0.7, "80.8", "95.4", "", "")
    return [_row("table7/scratch", _lean(deit, setting), setting), _row("table7/oracle", _lean(trained, start), start)]


def _labelled(lvvit: Fresh) -> list[Student]:
    """LV-ViT with token labels, of which the trained DeiT is the annotator; that at 448 pixels is a recipe alone."""
    changes = {key: value for key, value in TOKEN_LABELS.items() if key != "objective"}
    settings = [("table3b", setting) for setting in LV] + [("table6b", s) for s in LV_LARGER[1:] if not s.trained]
    return [
        Student(
            name=f"{table}/{setting.keep} at {setting.size}, token labels",
            make=_lean(lvvit, setting),
            objective=TOKEN_LABELS["objective"],
            teachers=("annotator",),
            changes=changes,
            paper=float(setting.top1),
        )
        for table, setting in settings
    ]
