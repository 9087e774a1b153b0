"""Small dims for every family, so that a suite can be seen to run anywhere in seconds before it runs for an hour."""

from typing import Any

VIT: dict[str, Any] = {"embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5}
STAGES: dict[str, Any] = {"img_size": 64, "depths": [1, 1, 1, 1], "dims": [16, 16, 32, 32], "num_classes": 5}
BY_PREFIX: dict[str, tuple[str, dict[str, Any]]] = {
    "vit_tiny_r_": ("", {**VIT, "img_size": 64, "depth": 2}),
    "vit_small_patch14": ("", {**VIT, "img_size": 56}),
    "vit": ("", {**VIT, "img_size": 64}),
    "deit": ("", {**VIT, "img_size": 64}),
    "lvvit": ("", {"img_size": 64, "embed_dim": 32, "num_heads": 2, "num_classes": 5}),  # as deep as SiT's stages say
    "swin": ("swin", {"img_size": 56, "embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "num_classes": 5}),
    "mixer": ("mixer", {"img_size": 64, "patch_size": 16, "embed_dim": 32, "num_blocks": 2, "num_classes": 5}),
    "gfnet": (
        "gfnet",
        {"img_size": 32, "patch_size": 4, "embed_dim": [16, 24, 32], "depth": [1, 1, 1], "num_classes": 5},
    ),
    "poolformer": ("", STAGES),
    "caformer": ("", STAGES),
}
"""Beginning of a model's name → the name ('' for its own) and the arguments of its tiny form; the first that fits."""


def tiny_form(model: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a tiny model that is built like a large one.

    Args:
        model: the large one's name.

    Raises:
        ValueError: for a model of a family that has no tiny form here.

    >>> tiny_form("deit_small_patch16_224")[0]
    'deit_small_patch16_224'
    """
    for prefix, (name, arguments) in BY_PREFIX.items():
        if model.startswith(prefix):
            return name or model, dict(arguments)
    raise ValueError(f"no tiny form of '{model}' is known; known families: {', '.join(BY_PREFIX)}")
