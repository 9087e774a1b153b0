"""SiT (Zong et al., ECCV 2022): LV-ViTs slimmed three times, taught by themselves; 125 epochs and 10 of cool-down.

    leanformer train --recipe sit_s --checkpoint lvvit_plus_small.pth --teacher self --data imagenet/ --output runs/sit
    leanformer train --recipe sit_deit_s --checkpoint deit_small.pth --teacher self --data imagenet/ --output runs/deit
    leanformer train --recipe sit_s_cnn --checkpoint lvvit_plus_small.pth --teacher self \\
        --teacher cnn=regnety_160:regnety_160.pth --data imagenet/ --output runs/sit_cnn

With a CNN as a second teacher the student gets a distillation token, which the checkpoint and the first teacher have
not; the paper's CNN is RegNetY-160, and any model of timm's will do.

Trained on 8 GPUs at batch 1024; no time is stated. The released code scales the rate by batch/512 (4e-4 here) where the
paper says batch/1024 (2e-4); the reverse modules learn at five times the rate.

An official checkpoint of a student holds the reverse modules as well. They are no part of our model; a training
objective has them, under the official keys:

    objective.load_state_dict(recalibration_state(official))           official → ours
    lf.to_official(model) | objective.state_dict()                     ours → official, for further training there
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn

from ..backbones import create
from ..backbones.lvvit import LVViT
from ..core import apply, card_of
from ..methods import SiT
from ..methods.sit.method import PRESETS
from . import sit_compared
from .door import CONVERTERS, RELEASED, VIT_BLOCKS, Converter, KeyMap, State
from .lvvit import build_sit_backbone, token_labelled
from .published import DEIT, Published, publish
from .table import PaperTables, Row

# Official keys

OFFICIAL = "Sense-X/SiT models.lvvit.LVViT(distillation_type='frd')"
SLIMMING = KeyMap(
    [
        ("tsm.{i}.weight.0.{*}", "tsm.{i}.norm.{*}"),
        ("tsm.{i}.weight.1.{*}", "tsm.{i}.fc1.{*}"),
        ("tsm.{i}.weight.3.{*}", "tsm.{i}.fc2.{*}"),
    ]
)


def recalibration_state(state: State) -> State:
    """The reverse modules' part of an official checkpoint, as the objective of SiT loads it.

    >>> import torch
    >>> recalibration_state({"head.bias": torch.zeros(2), "rtsm.1.norm1.bias": torch.zeros(4)}).keys()
    dict_keys(['rtsm.1.norm1.bias'])
    """
    return {key: value for key, value in state.items() if key.startswith("rtsm.")}


def _build(config: dict[str, Any], state: State) -> nn.Module:
    model = build_sit_backbone(config, state)
    stages = tuple(config.get("stage_blocks", PRESETS["lvvit_plus_xsmall"]))
    return apply(model, SiT(keep_ratio=config.get("keeping_ratio", 0.5), stages=stages, start="random"))


def _slimmed(model: nn.Module) -> list[int]:
    """The blocks that a slimming comes before."""
    return [i for i, block in enumerate(model.blocks) if not isinstance(block.pre, nn.Identity)]  # type: ignore


def _ours(state: State, model: nn.Module) -> State:
    places, ours = _slimmed(model), {}
    for key, value in state.items():
        if key.startswith("rtsm."):
            continue
        if key.startswith("tsm."):
            _, index, rest = SLIMMING.ours(key).split(".", 2)
            if int(index) >= len(places):
                raise ValueError(f"the state dict has {key}, but this model slims {len(places)} times")
            ours[f"blocks.{places[int(index)]}.pre.{rest}"] = value.reshape(()) if rest == "scale" else value
        else:
            ours[VIT_BLOCKS.ours(key)] = value
    return ours


def _theirs(state: State, model: nn.Module) -> State:
    if not _is_official(model):
        raise ValueError(
            "the official SiT is an LV-ViT that is not fused, slimmed by operator='tsm' over axis='inputs' from "
            f"start='random'; this is {card_of(model).methods} on {type(model).__name__}"
        )
    inside = {f"blocks.{place}.pre.": f"tsm.{k}." for k, place in enumerate(_slimmed(model))}
    backbone, slimming = {}, {}
    for key, value in state.items():
        prefix = key[: key.find(".pre.") + len(".pre.")]
        if prefix in inside:
            rest = key.removeprefix(prefix)
            slimming[SLIMMING.theirs(inside[prefix] + rest)] = value.reshape(1, 1, 1) if rest == "scale" else value
        else:
            backbone[VIT_BLOCKS.theirs(key)] = value
    return backbone | slimming


def _is_official(model: nn.Module) -> bool:
    card = card_of(model)
    if not isinstance(model, LVViT) or card.fused or [m.name for m in card.methods] != ["sit"]:
        return False
    options = card.methods[0].fields()
    return (options["operator"], options["axis"], options["start"]) == ("tsm", "inputs", "random")


CONVERTERS.append(Converter("sit", "LVViT(distillation_type='frd')", _build, _ours, _theirs, method="sit"))

for _teacher, _stages in PRESETS.items():
    _config = {**RELEASED[_teacher][1], "stage_blocks": list(_stages)}
    RELEASED[_teacher.replace("lvvit_plus", "sit_lvvit")] = (OFFICIAL, _config)

# Tables 1, 2, 3 and 7

DEIT_S = "deit_small_patch16_224"


def _student(size: str, distilled: bool = False, **options: Any) -> nn.Module:
    name = f"lvvit_plus_{size}"
    return apply(create(name, distilled=distilled), SiT.preset(name, **{"start": "random", **options}))


def _published(top1: str, speed: str = "") -> dict[str, str]:
    return {"top-1": top1, "img/s": speed}


TEACHERS = (  # size, name, parameters and MACs of the README, images/s and top-1 of Table 2
    ("tiny", "LV-ViT+-Ti", "15.7", "3.5", "1827", "82.1"),
    ("small", "LV-ViT+-S", "25.4", "5.5", "1360", "83.3"),
    ("medium", "LV-ViT+-M", "55.2", "11.9", "804", "84.2"),
    ("large", "LV-ViT+-L", "147", "56.1", "204", "85.7"),
)
STUDENTS = (  # size, name, parameters, MACs, images/s, top-1, then the same with a CNN as a second teacher
    ("tiny", "SiT-Ti", "15.9", "1.0", "5896", "80.1", ("16.2", "5833", "80.6")),
    ("xsmall", "SiT-XS", "25.6", "1.5", "4839", "81.1", ("26.0", "4798", "81.8")),
    ("small", "SiT-S", "25.6", "4.0", "1892", "83.2", ("26.0", "1873", "83.4")),
    ("medium", "SiT-M", "55.6", "8.1", "1197", "84.1", ("56.2", "1185", "84.3")),
    ("large", "SiT-L", "148.2", "34.4", "346", "85.6", None),
)

ON_DEIT = {  # name → stages, images/s, top-1 of Table 1
    "SiT on DeiT-S": ((7, 2, 1, 2), "2344", "79.8"),
    "SiT on DeiT-S, faster": ((3, 3, 3, 3), "3308", "79.4"),
}
UNSAID = "the paper prints neither stages nor MACs; these stages save about as much as its speeds say"


def _rows() -> Iterator[Row]:
    for size, name, params, macs, speed, top1 in TEACHERS:
        build = partial(create, f"lvvit_plus_{size}")
        yield Row("2 teacher", name, build, params, macs, published=_published(top1, speed))
    for size, name, params, macs, speed, top1, cnn in STUDENTS:
        yield Row("2, 3", name, partial(_student, size), params, macs, published=_published(top1, speed))
        if cnn is not None:
            build = partial(_student, size, distilled=True)
            yield Row("3", f"{name} + CNN teacher", build, cnn[0], macs, published=_published(cnn[2], cnn[1]))
    where = "the paper does not say where; here after blocks 1 and 10"
    for operator, name, top1 in (("pool", "average pooling", "77.4"), ("conv", "convolution", "79.3")):
        build = partial(_student, "tiny", operator=operator, keep_ratio=0.25, stages=(1, 9, 4))
        yield Row("7", f"Ti, {name}", build, macs="1.0", published=_published(top1), differs=where)
    build = partial(_student, "tiny", operator="token-mlp")
    yield Row("7", "Ti, token MLP", build, macs="1.1", published=_published("79.3"))
    yield Row("7", "Ti, TSM", partial(_student, "tiny"), macs="1.0", published=_published("80.1"))
    yield Row("1", "DeiT-S", partial(create, DEIT_S), published=_published("79.8", "1637"))
    for name, (stages, speed, top1) in ON_DEIT.items():
        build = partial(_on_deit, stages)
        yield Row(
            "1", f"{name}, {'+'.join(map(str, stages))}", build, differs=UNSAID, published=_published(top1, speed)
        )


def _on_deit(stages: tuple[int, ...]) -> nn.Module:
    return apply(create(DEIT_S), SiT(stages=stages, start="random"))


TABLES = PaperTables(
    [*_rows(), *sit_compared.rows()],
    """SiT's Tables 1, 2, 3 and 7: parameters and MACs of the paper and ours.

The paper counts students without the reverse modules, which exist in training only, but with the token-labelling head
that LV-ViT+ keeps and does not use. Teachers' figures are those of the published code's README. Images/s are on one
V100 of 16 GB.""",
)

# Recipes

RECIPE = DEIT.replace(
    epochs=125,
    cooldown_epochs=10,
    batch_size=1024,
    learning_rate=4e-4,
    warmup_epochs=0,
    schedule_per_epoch=True,
    ema=None,
)
DROP_PATH_OF_TEACHER = {"tiny": 0.1, "small": 0.1, "medium": 0.2, "large": 0.3}
DROP_PATH = {"tiny": 0.0, "xsmall": 0.1, "small": 0.1, "medium": 0.1, "large": 0.3}
AUGMENT = {"large": "rand-m9-n3-mstd0.5-inc1"}


def _recipe(size: str, title: str, top1: str, **changes: Any) -> Published:
    teacher = f"lvvit_plus_{size}"
    settings = {"drop_path": DROP_PATH[size], "auto_augment": AUGMENT.get(size, RECIPE.auto_augment)}
    found: dict[str, Any] = {
        "name": title.lower().replace("-", "_"),
        "model": teacher,
        "methods": (SiT.preset(teacher, start="random"),),
        "teacher": "self",
        "recipe": RECIPE.replace(**settings),
        "top1": top1,
        "note": "SiT's released training code; the teacher is LV-ViT+ trained with token labels",
    }
    return Published(**{**found, **changes})


def _with_cnn(size: str, title: str, top1: str) -> Published:
    return _recipe(
        size,
        f"{title}_cnn",
        top1,
        added={"distilled": True},
        methods=(SiT.preset(f"lvvit_plus_{size}", start="random", lambda_hard=1.0),),
        teacher="self + cnn=regnety_160",
        recipe=RECIPE.replace(epochs=300, drop_path=DROP_PATH[size]),
        note="the paper's long training with RegNetY-160 (82.9%) as teacher of the distillation token",
    )


def _deit(name: str, title: str) -> Published:
    stages, _, top1 = ON_DEIT[title]
    return Published(
        name=name,
        model=DEIT_S,
        methods=(SiT(stages=stages, start="random"),),
        teacher="self",
        recipe=RECIPE.replace(drop_path=0.1),
        top1=top1,
        note=f"SiT's training with DeiT-S as teacher of itself; {UNSAID}",
    )


publish([_deit("sit_deit_s", "SiT on DeiT-S"), _deit("sit_deit_s_fast", "SiT on DeiT-S, faster")])
publish(_recipe(size, title, top1) for size, title, _, _, _, top1, _ in STUDENTS)
publish(_with_cnn(size, title, cnn[2]) for size, title, _, _, _, _, cnn in STUDENTS if cnn is not None)
publish(token_labelled(f"lvvit_plus_{size}", DROP_PATH_OF_TEACHER[size], top1) for size, _, _, _, _, top1 in TEACHERS)
