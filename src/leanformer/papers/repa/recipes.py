"""RePaFormer (Xu et al., 2025): idle channels and batch norms in the FFNs, trained from scratch with Lamb, 300 epochs.

    leanformer train --recipe repa_deit_base --data imagenet/ --output runs/repa_deit_base

Trained on H100s; no training time is stated. The settings are the paper's Table 7, ViT-Large's are the authors'
README's. The models are the published ones (`repavit_*`, `repamixer_*`), not the backbones that they are named after.
The Mixers' drop path is the same in every block, as in the released code. LV-ViTs learn token labels, as in the paper.
"""

import dataclasses
from typing import Any

from ...methods import SLAB, RePa
from ..lvvit import ANNOTATOR, TOKEN_LABELS
from ..published import DEIT, Published, publish
from .models import BACKBONES, VANILLA, idle_ratio_of
from .tables import SENSITIVITY, TABLE1

RECIPE = DEIT.replace(
    optimizer="lamb", batch_size=4096, warmup_epochs=20, warmup_learning_rate=1e-6, color_jitter=0.3, ema=0.99996
)
ROWS: dict[str, tuple[float, float, float, float]] = {
    # model: learning rate, lowest rate, weight decay, drop path
    "DeiT-Tiny": (2.5e-3, 1e-6, 0.02, 0.02),
    "DeiT-Small": (3e-3, 4e-5, 0.05, 0.04),
    "DeiT-Base": (4e-3, 4e-5, 0.07, 0.10),
    "ViT-Large": (1e-3, 5e-5, 0.05, 0.3),
    "Swin-Tiny": (5e-3, 5e-5, 0.20, 0.10),
    "Swin-Small": (6e-3, 5e-5, 0.15, 0.09),
    "Swin-Base": (4e-3, 2e-5, 0.10, 0.08),
    "PoolFormer-s12": (2.5e-3, 6e-6, 0.16, 0.02),
    "PoolFormer-s24": (3.5e-3, 1.5e-6, 0.08, 0.01),
    "PoolFormer-s36": (5.5e-3, 3e-6, 0.01, 0.03),
    "MLPMixer-b16": (5e-3, 5e-6, 0.13, 0.04),
    "MLPMixer-l16": (4e-3, 1e-5, 0.16, 0.05),
    "LV-ViT-S": (1e-3, 1e-5, 0.05, 0.10),
    "LV-ViT-M": (1e-3, 1e-5, 0.05, 0.10),
}


def _published(title: str, rate: float, lowest: float, decay: float, drop: float) -> Published:
    model, arguments = BACKBONES[title]
    settings: dict[str, Any] = {"learning_rate": rate, "min_learning_rate": lowest, "weight_decay": decay}
    settings |= {"drop_path": drop, "drop_path_grows": not title.startswith("MLPMixer")}
    labelled = title.startswith("LV-ViT")
    if labelled:
        settings |= {"batch_size": 1024, **TOKEN_LABELS}
    short = title.lower().replace("lv-vit", "lvvit").replace("mlpmixer", "mixer").replace("-", "_")
    return Published(
        name=f"repa_{short}",
        model=model,
        arguments=arguments,
        methods=(RePa(idle_ratio=idle_ratio_of(title)),),
        recipe=RECIPE.replace(**settings),
        teacher=ANNOTATOR if labelled else "",
        top1=TABLE1[title][2],
        note="the authors' README" if title == "ViT-Large" else "the paper's Table 7",
    )


publish(_published(title, *settings) for title, settings in ROWS.items())


def _with_idle(table: str, title: str, ratio: float) -> Published:
    """A row of Tables 4 and 8, and the RePaFormers of Table 3: the model's recipe at another idle ratio."""
    base = _published(title, *ROWS[title])
    return dataclasses.replace(
        base,
        name=f"{base.name}_{ratio:g}",
        methods=(RePa(idle_ratio=ratio),),
        top1=SENSITIVITY[table][title][ratio][1],
        note=f"the paper's {table}; {base.note}",
    )


def _slab(title: str, top1: str) -> Published:
    """Table 3's comparator: the backbone under DeiT's training, its layer norms batch norms in the end."""
    model, arguments = VANILLA[title]
    return Published(
        name=f"slab_{title.lower().replace('-', '_')}",
        model=model,
        arguments=arguments,
        methods=(SLAB(ramp_epochs=RAMP, attention=title.startswith("DeiT")),),
        recipe=DEIT.replace(batch_size=1024, learning_rate=1e-3, drop_path=0.1),
        top1=top1,
        note="SLAB's norms under DeiT's training; the ramp ends ten epochs before the run does, which is ours",
    )


RAMP = 290
publish(
    _with_idle(table, title, ratio)
    for table, models in SENSITIVITY.items()
    for title, ratios in models.items()
    for ratio in ratios
    if ratio not in (None, idle_ratio_of(title))
)
publish([_slab("DeiT-Base", "78.9"), _slab("Swin-Base", "83.6")])
