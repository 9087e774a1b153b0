"""MetaFormer baselines (Yu et al., TPAMI 2024): IdentityFormer, RandFormer, PoolFormerV2, ConvFormer, CAFormer.

    leanformer train --recipe caformer_s18 --data imagenet/ --output runs/caformer_s18
    leanformer train runs/caformer_s18/model.safetensors --recipe caformer_s18_384 --data imagenet/ --output runs/384

300 epochs and 10 of cool-down at batch 4096; 30 epochs at a constant rate for 384 pixels. The authors give
IdentityFormer 74.6 to 80.4, RandFormer 76.6 to 81.4, PoolFormerV2 78.0 to 82.6, ConvFormer 83.0 to 84.8, CAFormer 83.6
to 85.5% top-1. No training time is stated; a CAFormer-S18 step was measured at 361 images a second on one A100.
"""

from ...train.recipe import Recipe
from ..published import Published, publish

SIZES = ("s12", "s24", "s36", "m36", "m48")
BIG_SIZES = ("s18", "s36", "m36", "b36")
BASE = Recipe(cooldown_epochs=10, batch_size=4096, learning_rate=4e-3, interpolation="random")
TOP1 = {
    "identityformer": ("74.6", "78.2", "79.3", "80.0", "80.4"),
    "randformer": ("76.6", "78.2", "79.5", "81.2", "81.4"),
    "poolformerv2": ("78.0", "80.7", "81.6", "82.2", "82.6"),
    "convformer": ("83.0", "84.1", "84.5", "84.8"),
    "caformer": ("83.6", "84.5", "85.2", "85.5"),
}
TOP1_384 = {"convformer": ("84.4", "85.4", "85.6", "85.7"), "caformer": ("85.0", "85.7", "86.2", "86.4")}
DROP = {"convformer": (0.2, 0.3, 0.4, 0.6), "caformer": (0.15, 0.3, 0.4, 0.6)}
HEAD = {"convformer": (0.0, 0.0, 0.0, 0.0), "caformer": (0.0, 0.4, 0.4, 0.5)}
DROP_384 = {"convformer": (0.3, 0.5, 0.8, 0.8), "caformer": (0.3, 0.5, 0.7, 0.8)}
HEAD_384 = {"convformer": (0.4, 0.4, 0.5, 0.5), "caformer": (0.4, 0.4, 0.4, 0.5)}
RECIPES = {
    "convformer": BASE.replace(warmup_epochs=20),
    "caformer": BASE.replace(warmup_epochs=20, optimizer="lamb", learning_rate=8e-3),
}
FINE = BASE.replace(
    epochs=30,
    cooldown_epochs=0,
    batch_size=1024,
    schedule="constant",
    warmup_epochs=0,
    mixup=0.0,
    cutmix=0.0,
    ema=0.9999,
)
FINE_384 = {
    "convformer": FINE.replace(learning_rate=5e-5),
    "caformer": FINE.replace(learning_rate=1e-4, optimizer="lamb"),
}


def _drop(family: str, index: int) -> float:
    """Drop path by size; RandFormer-M48 alone has 0.3 where the others have 0.4."""
    return 0.3 if (family, index) == ("randformer", 4) else (0.1, 0.1, 0.2, 0.3, 0.4)[index]


publish(
    Published(
        name=f"{family}_{size}",
        model=f"{family}_{size}",
        recipe=BASE.replace(drop_path=_drop(family, index)),
        top1=TOP1[family][index],
        note="metaformer's train scripts",
    )
    for family in ("identityformer", "randformer", "poolformerv2")
    for index, size in enumerate(SIZES)
)
publish(
    Published(
        name=f"{family}_{size}",
        model=f"{family}_{size}",
        arguments={"head_dropout": HEAD[family][index]},
        recipe=RECIPES[family].replace(drop_path=DROP[family][index]),
        top1=TOP1[family][index],
        note="metaformer's train scripts",
    )
    for family in RECIPES
    for index, size in enumerate(BIG_SIZES)
)
publish(
    Published(
        name=f"{family}_{size}_384",
        model=f"{family}_{size}_384",
        arguments={"head_dropout": HEAD_384[family][index]},
        recipe=FINE_384[family].replace(drop_path=DROP_384[family][index]),
        top1=TOP1_384[family][index],
        note="metaformer's finetune scripts, from the model trained at 224",
    )
    for family in FINE_384
    for index, size in enumerate(BIG_SIZES)
)
