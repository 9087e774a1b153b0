"""RIFormer (Wang et al., CVPR 2023): PoolFormers without token mixers, distilled for 600 epochs, then 30 at 384 pixels.

    leanformer train --recipe riformer_s12 --checkpoint poolformer_s12.pth \\
        --teacher gfnet_h_b:gfnet_h_b.pth --teacher imitation=poolformer_s12:poolformer_s12.pth \\
        --data imagenet/ --output runs/riformer_s12

The paper gives S12 76.9, S24 80.3, S36 81.3, M36 82.6, M48 82.8% top-1 at 224 and 78.3, 81.4, 82.2, 83.4, 83.7% at 384.
No training code was released: the optimizer's settings are those of the released inference configuration, the weights
of the imitation terms are the method's defaults. Feature terms count for 80 of 120 epochs and the relation term for 20
in the paper's study, here in the same shares of the run. No training time is stated.
"""

from ...train.recipe import Recipe
from ..published import Published, publish

SIZES = ("s12", "s24", "s36", "m36", "m48")
TOP1, TOP1_384 = ("76.9", "80.3", "81.3", "82.6", "82.8"), ("78.3", "81.4", "82.2", "83.4", "83.7")
RECIPE = Recipe(
    epochs=600, batch_size=4096, learning_rate=4e-3, warmup_epochs=20, warmup_learning_rate=4e-6, clip_grad=5.0,
    drop_path=0.1, color_jitter=0.0,
)  # fmt: skip
FINE = RECIPE.replace(epochs=30, learning_rate=1e-4, warmup_epochs=0, batch_size=1024)

publish(
    Published(
        name=f"riformer_{size}",
        model=f"poolformer_{size}",
        methods=("riformer:feature_epochs=400,relation_epochs=100",),
        teacher=f"gfnet_h_b + imitation=poolformer_{size}",
        recipe=RECIPE,
        top1=top1,
        note="epochs and augmentation from the paper; optimizer from mmpretrain's configuration",
    )
    for size, top1 in zip(SIZES, TOP1)
)
publish(
    Published(
        name=f"riformer_{size}_384",
        model=f"poolformer_{size}",
        arguments={"img_size": 384},
        methods=("riformer:layers=0",),
        teacher="gfnet_h_b",
        recipe=FINE,
        top1=top1,
        note="30 epochs from the model trained at 224; the paper states no rate, 1e-4 at batch 1024 is ours",
    )
    for size, top1 in zip(SIZES, TOP1_384)
)
