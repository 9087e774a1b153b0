"""PoolFormer (Yu et al., CVPR 2022): 300 epochs and 10 of cool-down on ImageNet-1k at 224 pixels.

    leanformer train --recipe poolformer_s12 --data imagenet/ --output runs/poolformer_s12

The paper gives S12 77.2, S24 80.3, S36 81.4, M36 82.1, M48 82.5% top-1. Its authors trained on TPUs at batch 4096 and a
rate of 4e-3; the rate goes with the batch. No training time is stated. S12 gains to 78.8 at 2000 epochs.
"""

from ...train.recipe import Recipe
from ..published import Published, publish

RECIPE = Recipe(cooldown_epochs=10, batch_size=1024, learning_rate=1e-3, interpolation="random")
ROWS = {"s12": (0.1, "77.2"), "s24": (0.1, "80.3"), "s36": (0.2, "81.4"), "m36": (0.3, "82.1"), "m48": (0.4, "82.5")}
NOTE = "poolformer's train script; the batch may be 4096 with learning_rate=4e-3"

publish(
    Published(
        name=f"poolformer_{size}",
        model=f"poolformer_{size}",
        recipe=RECIPE.replace(drop_path=drop),
        top1=top1,
        note=NOTE,
    )
    for size, (drop, top1) in ROWS.items()
)
