"""SiT (Zong et al., ECCV 2022): LV-ViTs slimmed three times, taught by themselves; 125 epochs and 10 of cool-down.

    leanformer train --recipe sit_s --checkpoint lvvit_plus_small.pth --teacher self --data imagenet/ --output runs/sit

The paper gives SiT-Ti 80.1, XS 81.1, S 83.2, M 84.1, L 85.6% top-1; with a CNN as second teacher and 300 epochs 80.6,
81.8, 83.4 and 84.3% (Ti to M). Trained on 8 GPUs at batch 1024; no time is stated. The released code scales the rate by
batch/512 (4e-4 here) where the paper says batch/1024 (2e-4); the reverse modules learn at five times the rate.
"""

from ..published import DEIT, Published, publish

RECIPE = DEIT.replace(
    epochs=125,
    cooldown_epochs=10,
    batch_size=1024,
    learning_rate=4e-4,
    warmup_epochs=0,
    schedule_per_epoch=True,
    ema=None,
)
ROWS = {
    # name: teacher, stages, drop path, top-1, top-1 with a CNN teacher
    "ti": ("tiny", "(1,1,1,11)", 0.0, "80.1", "80.6"),
    "xs": ("xsmall", "(1,1,1,13)", 0.1, "81.1", "81.8"),
    "s": ("small", "(9,3,2,2)", 0.1, "83.2", "83.4"),
    "m": ("medium", "(10,4,3,3)", 0.1, "84.1", "84.3"),
    "l": ("large", "(10,4,3,7)", 0.3, "85.6", ""),
}
AUGMENT = {"l": "rand-m9-n3-mstd0.5-inc1"}

publish(
    Published(
        name=f"sit_{name}",
        model=f"lvvit_plus_{teacher}",
        methods=(f"sit:stages={stages},start=random",),
        teacher="self",
        recipe=RECIPE.replace(drop_path=drop, auto_augment=AUGMENT.get(name, RECIPE.auto_augment)),
        top1=top1,
        note="SiT's released training code; the teacher is LV-ViT+ trained with token labels",
    )
    for name, (teacher, stages, drop, top1, _) in ROWS.items()
)
publish(
    Published(
        name=f"sit_{name}_cnn",
        model=f"lvvit_plus_{teacher}",
        arguments={"distilled": True},
        methods=(f"sit:stages={stages},start=random,lambda_hard=1.0",),
        teacher="self + cnn=regnety_160",
        recipe=RECIPE.replace(epochs=300, drop_path=drop),
        top1=top1,
        note="the paper's long training with RegNetY-160 (82.9%) as teacher of the distillation token",
    )
    for name, (teacher, stages, drop, _, top1) in ROWS.items()
    if top1
)
