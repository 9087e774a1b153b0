"""RePaFormer (Xu et al., 2025): idle channels and batch norms in the FFNs, trained from scratch with Lamb, 300 epochs.

    leanformer train --recipe repa_deit_base --data imagenet/ --output runs/repa_deit_base

The paper (Table 1, idle ratio 0.75) gives DeiT-T 64.3, DeiT-S 77.1, DeiT-B 81.4, Swin-T 78.5, Swin-S 81.6, Swin-B 82.6,
PoolFormer-s12 70.5, s24 75.4, s36 76.8, MLPMixer-b16 72.1, l16 72.6, LV-ViT-S 81.6, LV-ViT-M 83.6% top-1. Trained on
H100s; no training time is stated. The settings are its Table 7, ViT-Large's are the authors' README's. The models are
the published ones (`repavit_*`, `repamixer_*`), not the backbones that they are named after.
"""

from typing import Any

from ..published import DEIT, Published, publish

RECIPE = DEIT.replace(
    optimizer="lamb", batch_size=4096, warmup_epochs=20, warmup_learning_rate=1e-6, color_jitter=0.3, ema=0.99996
)
POOL: dict[str, Any] = {"pool_size": 7}
ROWS: dict[str, tuple[str, dict[str, Any], float, float, float, float, str]] = {
    # name: model, arguments, learning rate, lowest rate, weight decay, drop path, top-1
    "deit_tiny": ("repavit_tiny", {}, 2.5e-3, 1e-6, 0.02, 0.02, "64.3"),
    "deit_small": ("repavit_small", {}, 3e-3, 4e-5, 0.05, 0.04, "77.1"),
    "deit_base": ("repavit_base", {}, 4e-3, 4e-5, 0.07, 0.10, "81.4"),
    "vit_large": ("repavit_large", {}, 1e-3, 5e-5, 0.05, 0.3, "82.0"),
    "swin_tiny": ("swin_tiny_patch4_window7_224", {}, 5e-3, 5e-5, 0.20, 0.10, "78.5"),
    "swin_small": ("swin_small_patch4_window7_224", {}, 6e-3, 5e-5, 0.15, 0.09, "81.6"),
    "swin_base": ("swin_base_patch4_window7_224", {}, 4e-3, 2e-5, 0.10, 0.08, "82.6"),
    "poolformer_s12": ("poolformer_s12", POOL, 2.5e-3, 6e-6, 0.16, 0.02, "70.5"),
    "poolformer_s24": ("poolformer_s24", POOL, 3.5e-3, 1.5e-6, 0.08, 0.01, "75.4"),
    "poolformer_s36": ("poolformer_s36", POOL, 5.5e-3, 3e-6, 0.01, 0.03, "76.8"),
    "mixer_b16": ("repamixer_b16", {}, 5e-3, 5e-6, 0.13, 0.04, "72.1"),
    "mixer_l16": ("repamixer_l16", {}, 4e-3, 1e-5, 0.16, 0.05, "72.6"),
}
LVVIT = {"s": "81.6", "m": "83.6"}

publish(
    Published(
        name=f"repa_{name}",
        model=model,
        arguments=arguments,
        methods=("repa:idle_ratio=0.75",),
        recipe=RECIPE.replace(learning_rate=rate, min_learning_rate=lowest, weight_decay=decay, drop_path=drop),
        top1=top1,
        note="the paper's Table 7" if name != "vit_large" else "the authors' README",
    )
    for name, (model, arguments, rate, lowest, decay, drop, top1) in ROWS.items()
)
publish(
    Published(
        name=f"repa_lvvit_{size}",
        model=f"lvvit_{size}",
        methods=("repa:idle_ratio=0.6666666666666667",),
        recipe=RECIPE.replace(batch_size=1024, learning_rate=1e-3, min_learning_rate=1e-5, drop_path=0.1),
        top1=top1,
        note="the paper's Table 7; the paper trains LV-ViT with token labels",
    )
    for size, top1 in LVVIT.items()
)
