"""PoolFormer (Yu et al., CVPR 2022) and the MetaFormer baselines (Yu et al., TPAMI 2024), trained on ImageNet-1k.

    leanformer train --recipe poolformer_s12 --data imagenet/ --output runs/poolformer_s12
    leanformer train --recipe caformer_s18 --data imagenet/ --output runs/caformer_s18
    leanformer train runs/caformer_s18/model.safetensors --recipe caformer_s18_384 --data imagenet/ --output runs/384

300 epochs and 10 of cool-down; 30 epochs at a constant rate for 384 pixels. PoolFormer's authors trained on TPUs at
batch 4096 and a rate of 4e-3; the rate goes with the batch. No training time is stated; a CAFormer-S18 step was
measured at 361 images a second on one A100.
"""

from ...backbones.metaformer_config import CONV_SIZES, SIZES
from ...train.recipe import Recipe
from ..published import Published, publish
from .tables import EPOCHS, TOP1

BASE = Recipe(cooldown_epochs=10, batch_size=4096, learning_rate=4e-3, interpolation="random")
POOLFORMER = BASE.replace(batch_size=1024, learning_rate=1e-3)
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


SCRIPTS = "metaformer's train scripts"


def _drop(family: str, size: str) -> float:
    """Drop path by size; RandFormer-M48 alone has 0.3 where the others have 0.4."""
    if (family, size) == ("randformer", "m48"):
        return 0.3
    return {"s12": 0.1, "s24": 0.1, "s36": 0.2, "m36": 0.3, "m48": 0.4}[size]


def _published(name: str, recipe: Recipe, note: str, head_dropout: float = 0.0, size: int | None = None) -> Published:
    arguments = {"head_dropout": head_dropout} if head_dropout else {}
    return Published(
        name=name, model=name, arguments=arguments, img_size=size, recipe=recipe, top1=TOP1[name], note=note
    )


publish(
    _published(
        f"poolformer_{size}",
        POOLFORMER.replace(drop_path=_drop("poolformer", size)),
        "poolformer's train script; the batch may be 4096 with learning_rate=4e-3",
    )
    for size in SIZES
)
publish(
    Published(
        name=f"poolformer_s12_{epochs}",
        model="poolformer_s12",
        recipe=POOLFORMER.replace(drop_path=_drop("poolformer", "s12"), epochs=epochs),
        top1=top1,
        note="the paper's longer training, its other settings as for 300 epochs",
    )
    for epochs, top1 in EPOCHS.items()
    if epochs != 300
)
publish(
    _published(f"{family}_{size}", BASE.replace(drop_path=_drop(family, size)), SCRIPTS)
    for family in ("identityformer", "randformer", "poolformerv2")
    for size in SIZES
)
publish(
    _published(f"{family}_{size}", recipe.replace(drop_path=drop), SCRIPTS, head)
    for family, recipe in RECIPES.items()
    for size, drop, head in zip(CONV_SIZES, DROP[family], HEAD[family], strict=True)
)
publish(
    _published(
        f"{family}_{size}_384",
        recipe.replace(drop_path=drop),
        "metaformer's finetune scripts, from the model trained at 224",
        head,
        384,
    )
    for family, recipe in FINE_384.items()
    for size, drop, head in zip(CONV_SIZES, DROP_384[family], HEAD_384[family], strict=True)
)
