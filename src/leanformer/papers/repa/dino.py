"""RePaFormer's Table 5: ViTs pre-trained without labels by DINO (Caron et al., 2021), with and without idle channels.

    leanformer train --recipe repa_dino_vit_small --data images:photos/ --output runs/repa_dino_vit_small

The paper says that they are "trained following the strategies outlined in DINO" and no more: epochs, rates, crops and
the idle ratio are not stated. The ratio follows from the parameters; all else is what DINO published for the backbone.
What differs from DINO's code: gradients are clipped together, not each tensor by itself; prototypes always have length
one; position embeddings and the class token do not decay; colours change in every crop, without the hue; the blur of
local crops is weaker.
"""

from typing import Any

from ...methods import RePa
from ...tasks import dino
from ..published import Published, publish
from .tables import TABLE5

BACKBONE: dict[str, Any] = {"num_classes": 0, "dynamic_img_size": True}
OPEN = "Table 5 states neither epochs nor settings; these are DINO's published ones"
SMALL = (
    dino.recipe(epochs=300),
    dino.Config(teacher_temp=0.07, warmup_teacher_temp_epochs=30),
)
"""DINO's README, 'boosting DINO performance': 73.3% by neighbours, 76.1% by a linear classifier."""
BASE = (
    dino.recipe(epochs=400, learning_rate=3e-3, min_learning_rate=2e-6, clip_grad=0.3),
    dino.Config(
        teacher_temp=0.07, warmup_teacher_temp_epochs=50, freeze_prototypes_epochs=3, local_crops=10,
        global_scale=(0.25, 1.0), local_scale=(0.05, 0.25),
    ),
)  # fmt: skip
"""The arguments beside DINO's released ViT-B/16: 76.1% by neighbours, 78.2% by a linear classifier."""
MODELS = {
    "vit_small": ("vit_small_patch16_224", SMALL, "ViT-Small"),
    "vit_base": ("vit_base_patch16_224", BASE, "ViT-Base"),
}
IDLE_RATIO = 0.75


def _published(name: str, idle: bool) -> Published:
    model, (recipe, config), row = MODELS[name]
    _, _, _, knn, linear = TABLE5[f"RePa-{row}, fused" if idle else row]
    return Published(
        name=f"repa_dino_{name}" if idle else f"dino_{name}",
        model=model,
        arguments=BACKBONE,
        methods=(RePa(idle_ratio=IDLE_RATIO),) if idle else (),
        recipe=recipe,
        task=config.text(),
        top1=f"k-NN {knn}, linear {linear}",
        note=OPEN,
    )


def _small() -> Published:
    """For small data: a ViT of 8 x 8 patches on 64 x 64 pixels, as Tiny-ImageNet has them."""
    config = dino.Config(
        prototypes=4096, hidden=1024, head_norm=True, local_crops=6, local_size=32, momentum=0.99,
        local_scale=(0.1, 0.4), blur=(0.5, 0.1, 0.2),
    )  # fmt: skip
    return Published(
        name="dino_tiny_images",
        model="vit",
        arguments={**BACKBONE, "img_size": 64, "patch_size": 8, "embed_dim": 192, "depth": 12, "num_heads": 3},
        recipe=dino.recipe(epochs=100, batch_size=512, learning_rate=1e-3),
        task=config.text(),
        note="leanformer's own, for images of 64 x 64 pixels",
    )


publish(_published(name, idle) for name in MODELS for idle in (False, True))
publish([_small()])
