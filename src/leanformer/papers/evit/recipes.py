"""EViT (Liang et al., ICLR 2022): DeiTs and LV-ViTs that lose inattentive tokens in three of their blocks.

    leanformer train --recipe evit_deit_small_0.7 --data imagenet/ --output runs/evit_deit_small
    leanformer train --recipe evit_deit_small_0.7_oracle --checkpoint deit_small.pth --data imagenet/ --output runs/o
    leanformer train --recipe evit_deit_small_0.7_finetune --checkpoint deit_small.pth --data imagenet/ --output runs/f
    leanformer train --recipe evit_lvvit_small_0.7_272 --teacher annotator=dm_nfnet_f6:nfnet_f6.pth --data imagenet/ …
    leanformer train runs/272/model.safetensors --recipe evit_lvvit_small_0.7_448 --teacher annotator=… …

Names end in the image size where it is not 224 (Table 6). The paper's oracle (Table 7) is a trained DeiT that the
training starts from, nothing else. No training time is stated.
"""

from collections.abc import Sequence
from typing import Any

from ...methods import EViT
from ..lvvit import ANNOTATOR
from ..lvvit import RECIPE as LVVIT_RECIPE
from ..published import DEIT, Published, publish
from .tables import (
    BASE,
    DEIT_B,
    DEIT_S,
    LARGER,
    LOCATIONS,
    LONGER,
    LV,
    LV_LARGER,
    LVVIT_S,
    ORACLE,
    ORACLE_BASE,
    WITH_FUSION,
    WITHOUT_FUSION,
    Setting,
)  # fmt: skip

RECIPE = DEIT.replace(batch_size=2048, learning_rate=2e-3, drop_path=0.1)
FINE = DEIT.replace(
    epochs=30, batch_size=2048, learning_rate=8e-5, min_learning_rate=2e-6, weight_decay=1e-6, warmup_epochs=0,
    frozen_statistics=True,
)  # fmt: skip
LVVIT = LVVIT_RECIPE.replace(drop_path=0.1)
LARGER_IMAGES = LVVIT.replace(epochs=100, batch_size=512, learning_rate=2e-5, warmup_epochs=0)
LONG = (450, 600)
"""Epochs of the longer trainings of EViT-DeiT-S at 0.7."""
HOLD: dict[str, Any] = {"start_epoch": 0, "shrink_epochs": 0}
"""The keep rate from the first step on, for a model that was trained with it."""
PAPER = "the paper, and run_code.sh"
FROM_TRAINED = "the same training from a trained DeiT, the paper's oracle: --checkpoint"
LABELLED = "LV-ViT's settings; token labels only for the tokens that remain; code was never released"
NO_RATE = "the paper says 100 epochs and no rate; 2e-5 at batch 512 is ours"


def _deit(name: str, setting: Setting, model: str = DEIT_S, fuse: bool = True, **more: Any) -> Published:
    at = None if setting.layers == (4, 7, 10) else tuple(layer - 1 for layer in setting.layers)
    found: dict[str, Any] = {
        "name": f"evit_deit_{name}",
        "model": model,
        "arguments": {"img_size": setting.size} if setting.size != 224 else {},
        "methods": (EViT(keep_rate=setting.keep, at=at, fuse_tokens=fuse),),
        "recipe": RECIPE,
        "top1": setting.top1,
        "note": PAPER,
    }
    return Published(**{**found, **more})


def _lvvit(setting: Setting) -> Published:
    sized = f"_{setting.size}" if setting.size != 224 else ""
    name = f"evit_lvvit_small_{setting.keep}{sized}" if setting.keep != 1 else f"lvvit_s{sized}"
    schedule: dict[str, Any] = HOLD if setting.trained and setting.keep != 1 else {}
    return Published(
        name=name,
        model=LVVIT_S,
        arguments={"img_size": setting.size} if sized else {},
        img_size=setting.size if setting.trained else None,
        methods=(EViT(keep_rate=setting.keep, **schedule),) if setting.keep != 1 else (),
        schedule=schedule,
        teacher=ANNOTATOR,
        recipe=LARGER_IMAGES if setting.trained else LVVIT,
        top1=setting.top1,
        note=f"from the model trained at {setting.trained.rstrip(' →')}; {NO_RATE}" if setting.trained else LABELLED,
    )


def _lean(settings: Sequence[Setting]) -> list[Setting]:
    return [setting for setting in settings if setting.keep != 1]


publish(_deit(f"small_{setting.keep}", setting) for setting in WITH_FUSION)
publish(_deit(f"small_{setting.keep}_no_fusion", setting, fuse=False) for setting in _lean(WITHOUT_FUSION))
publish(_deit(f"base_{setting.keep}", setting, DEIT_B) for setting in _lean(BASE))
publish(
    _deit(f"small_at_{'_'.join(map(str, setting.layers))}", setting, note=f"{PAPER}; layers counted from 1")
    for setting in LOCATIONS[1:]
)
publish(_deit(f"small_{setting.keep}_{setting.size}", setting) for setting in _lean(LARGER))
publish(
    _deit(f"small_0.7_{epochs}", setting, recipe=RECIPE.replace(epochs=epochs))
    for epochs, setting in zip(LONG, LONGER, strict=True)
)
publish(
    [
        _deit("small_0.7_oracle", ORACLE[0], note=FROM_TRAINED),
        *(
            _deit(f"small_0.7_oracle_{epochs}", setting, recipe=RECIPE.replace(epochs=epochs), note=FROM_TRAINED)
            for epochs, setting in zip(LONG, ORACLE[1:], strict=True)
        ),
        _deit("base_0.7_oracle", *ORACLE_BASE, DEIT_B, note=FROM_TRAINED),
        _deit("small_0.7_finetune", WITH_FUSION[2], methods=(EViT.finetune(keep_rate=0.7),), recipe=FINE, top1="",
              note="finetune.sh, from a trained DeiT-S; the model stays in evaluation mode"),
    ]
)  # fmt: skip
publish(_lvvit(setting) for setting in (*_lean(LV), *LV_LARGER[1:]))
