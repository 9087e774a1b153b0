"""What a model takes: the size of its images, their normalisation and crop, and how it pools before its classifier."""

from typing import Any

import timm.data
import torch
from torch import nn

from .optimised import plain_of

VIEW = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")
"""What of a model's input is kept on its card beside the arguments."""


def input_of(model: nn.Module) -> dict[str, Any]:
    """Input size (C, H, W), normalisation and evaluation crop of a model, as it was built.

    >>> import leanformer as lf
    >>> input_of(lf.create("deit_tiny_patch16_224", img_size=160))["input_size"]
    (3, 160, 160)
    """
    model = plain_of(model)
    config = timm.data.resolve_data_config(model=model)
    size = image_size(model)
    chans = getattr(model, "in_chans", config["input_size"][0])
    grid = (size, size) if isinstance(size, int) else tuple(size or config["input_size"][1:])
    return {**config, "input_size": (chans, *grid)}


def halved(model: nn.Module) -> torch.dtype | None:
    """The type of a model's weights where that is float16 or bfloat16: good for answers, too coarse to learn with.

    >>> halved(nn.Linear(2, 2).bfloat16())
    torch.bfloat16
    """
    return next((each.dtype for each in model.parameters() if each.dtype in (torch.float16, torch.bfloat16)), None)


def check_whole(model: nn.Module, what: str = "the model") -> None:
    """Refuse weights that are too coarse to learn with.

    Args:
        model: A model that is to be trained or fitted, or to teach.
        what: What it is called in the error.

    >>> check_whole(nn.Linear(2, 2).half())
    Traceback (most recent call last):
    ValueError: the weights of the model are torch.float16, too coarse to learn with; give model.float()
    """
    if (coarse := halved(model)) is not None:
        raise ValueError(f"the weights of {what} are {coarse}, too coarse to learn with; give model.float()")


def set_input(model: nn.Module, config: dict[str, Any]) -> nn.Module:
    """Give a model another normalisation and crop, as `input_of` tells them, and return it.

    The size is changed only where the model is built for none: for another one there is `lf.resize`.

    >>> import leanformer as lf
    >>> input_of(set_input(lf.create("deit_tiny_patch16_224", depth=1), {"crop_pct": 1.0}))["crop_pct"]
    1.0
    """
    now = input_of(model)
    other = {key: config[key] for key in VIEW if key in config and config[key] != now[key]}
    if image_size(model) is not None:
        other.pop("input_size", None)
    if other:
        model.pretrained_cfg = {**(getattr(model, "pretrained_cfg", None) or {}), **other}  # type: ignore[assignment]
    return model


def image_size(model: nn.Module) -> int | tuple[int, int] | None:
    """The image size that the patch embedding was built for, wherever the family keeps it; None: for any.

    >>> import leanformer as lf
    >>> image_size(lf.create("deit_tiny_patch16_224", depth=1))
    (224, 224)
    """
    places = (getattr(model, "patch_embed", None), getattr(model, "stem", None), model)
    return next((place.img_size for place in places if getattr(place, "img_size", None)), None)  # type: ignore[union-attr]


def patch_plane(model: nn.Module) -> tuple[int, int] | None:
    """Height and width of the plane of patches at the model's own image size, whatever images it saw since.

    None where the patch embedding does not tell.

    >>> import leanformer as lf
    >>> patch_plane(lf.create("deit_tiny_patch16_224", depth=1))
    (14, 14)
    """
    places = (getattr(model, "patch_embed", None), getattr(model, "stem", None))
    found = next((place.grid_size for place in places if getattr(place, "grid_size", None)), None)  # type: ignore[union-attr]
    return None if found is None else (int(found[0]), int(found[1]))


def pooling_of(model: nn.Module) -> str | None:
    """The name of the pooling before the classifier, where timm's `reset_classifier` can change it.

    >>> import leanformer as lf
    >>> pooling_of(lf.create("deit_tiny_patch16_224"))
    'token'
    """
    inner, own = getattr(getattr(model, "head", None), "global_pool", None), getattr(model, "global_pool", None)
    named = getattr(inner, "pool_type", None) or getattr(own, "pool_type", None)
    return named or (own if isinstance(own, str) else None)
