"""EViT (Liang et al., ICLR 2022): DeiTs that lose inattentive tokens in their 4th, 7th and 10th block.

    leanformer train --recipe evit_deit_small_0.7 --data imagenet/ --output runs/evit_deit_small
    leanformer train --recipe evit_deit_small_0.7_finetune --checkpoint deit_small.pth --data imagenet/ --output runs/f

With fusion, for keep rates 0.9 to 0.5, the paper gives DeiT-S 79.8 79.8 79.5 78.9 78.5, DeiT-B 81.8 81.7 81.3 80.9
80.0, LV-ViT-S (0.7, 0.5) 83.0 82.5% top-1; DeiT-S at 0.7 for 450 and 600 epochs 80.2 and 81.0; from a trained DeiT-S
("oracle") 80.8, 81.0 and 81.3 for 300, 450 and 600 epochs. Batch 2048 on 8 GPUs; no training time is stated.
"""

from ..published import DEIT, Published, publish

RECIPE = DEIT.replace(batch_size=2048, learning_rate=2e-3, drop_path=0.1)
FINE = DEIT.replace(
    epochs=30, batch_size=2048, learning_rate=8e-5, min_learning_rate=2e-6, weight_decay=1e-6, warmup_epochs=0,
    frozen_statistics=True,
)  # fmt: skip
TOP1 = {
    "small": {0.9: "79.8", 0.8: "79.8", 0.7: "79.5", 0.6: "78.9", 0.5: "78.5"},
    "base": {0.9: "81.8", 0.8: "81.7", 0.7: "81.3", 0.6: "80.9", 0.5: "80.0"},
}
LONG = {450: ("80.2", "81.0"), 600: ("81.0", "81.3")}

publish(
    Published(
        name=f"evit_deit_{size}_{rate}",
        model=f"deit_{size}_patch16_224",
        methods=(f"evit:keep_rate={rate},start_epoch=10,shrink_epochs=100",),
        recipe=RECIPE,
        top1=top1,
        note="the paper, and run_code.sh; from a trained DeiT instead of from scratch it gains 0.8 to 1.3 points",
    )
    for size, rates in TOP1.items()
    for rate, top1 in rates.items()
)
publish(
    Published(
        name=f"evit_deit_small_0.7_{epochs}",
        model="deit_small_patch16_224",
        methods=("evit:keep_rate=0.7,start_epoch=10,shrink_epochs=100",),
        recipe=RECIPE.replace(epochs=epochs),
        top1=f"{scratch} ({oracle} from DeiT-S)",
        note="the paper's longer training",
    )
    for epochs, (scratch, oracle) in LONG.items()
)
publish(
    [
        Published(
            name="evit_deit_small_0.7_finetune",
            model="deit_small_patch16_224",
            methods=("evit:keep_rate=0.7,start_epoch=0,shrink_epochs=0",),
            recipe=FINE,
            note="finetune.sh, from a trained DeiT-S; the model stays in evaluation mode",
        )
    ]
)
publish(
    Published(
        name=f"evit_lvvit_small_{rate}",
        model="lvvit_s",
        methods=(f"evit:keep_rate={rate},start_epoch=10,shrink_epochs=100",),
        recipe=DEIT.replace(batch_size=1024, learning_rate=1.6e-3, drop_path=0.1, ema=0.99992, repeats=1),
        top1=top1,
        note="LV-ViT's settings; token labels only for the tokens that remain; code was never released",
    )
    for rate, top1 in {0.7: "83.0", 0.5: "82.5"}.items()
)
