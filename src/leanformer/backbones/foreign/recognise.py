"""Which models of other libraries are understood, by the full names of their classes."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...core import input_of
from ..fits import check_keys
from ..registry import build
from . import dinov2, swin, torchvision, transformers_vit
from .translation import Translation

TRANSFORMERS = "transformers.models"
TRANSLATORS: dict[str, Callable[..., Translation]] = {
    f"{TRANSFORMERS}.vit.modeling_vit.ViTModel": transformers_vit.vit,
    f"{TRANSFORMERS}.vit.modeling_vit.ViTForImageClassification": transformers_vit.vit,
    f"{TRANSFORMERS}.deit.modeling_deit.DeiTModel": transformers_vit.deit,
    f"{TRANSFORMERS}.deit.modeling_deit.DeiTForImageClassification": transformers_vit.deit,
    f"{TRANSFORMERS}.deit.modeling_deit.DeiTForImageClassificationWithTeacher": transformers_vit.deit,
    f"{TRANSFORMERS}.dinov2.modeling_dinov2.Dinov2Model": dinov2.translate,
    f"{TRANSFORMERS}.dinov2.modeling_dinov2.Dinov2ForImageClassification": dinov2.translate,
    f"{TRANSFORMERS}.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersModel": dinov2.translate,
    f"{TRANSFORMERS}.dinov2_with_registers.modeling_dinov2_with_registers."
    "Dinov2WithRegistersForImageClassification": dinov2.translate,
    f"{TRANSFORMERS}.swin.modeling_swin.SwinModel": swin.translate,
    f"{TRANSFORMERS}.swin.modeling_swin.SwinForImageClassification": swin.translate,
    "torchvision.models.vision_transformer.VisionTransformer": torchvision.vit,
    "torchvision.models.swin_transformer.SwinTransformer": torchvision.swin,
}
"""Class → the function that translates a model of exactly that class."""
CLOSE = 1e-3
"""How far the answers on one random image may lie apart, against the largest of them, in float32 on any device."""


def from_elsewhere(model: nn.Module) -> bool:
    """Whether a model is of a class of another library that is understood.

    >>> from_elsewhere(nn.Linear(1, 1))
    False
    """
    return _full_name(model) in TRANSLATORS


def translate(model: nn.Module, arguments: dict[str, Any] | None = None) -> tuple[nn.Module, Translation]:
    """timm's model with the weights of one of another library, and how it was translated.

    Args:
        model: A model of a class in `TRANSLATORS`; it stays as it is.
        arguments: What the model does not say of itself: `img_size` for torchvision's Swin.
    """
    name, translator = type(model).__name__, TRANSLATORS[_full_name(model)]
    unknown = sorted(set(arguments or {}) - set(inspect.signature(translator).parameters))
    if unknown:
        raise ValueError(f"cannot adopt {name}: it says itself what it is; do not give {unknown[0]}")
    try:
        told = translator(model, **(arguments or {}))
    except ValueError as error:
        raise ValueError(f"cannot adopt {name}: {error}") from error
    like = next(model.parameters())
    new = build(told.name, **told.arguments).to(like.device, like.dtype)
    check_keys(new.state_dict(), told.weights, f"this {name}")
    new.load_state_dict(told.weights)
    _prove(model, new, told)
    return new.train(model.training), told


def _full_name(model: nn.Module) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


@torch.no_grad()
def _prove(theirs: nn.Module, ours: nn.Module, told: Translation) -> None:
    """Refuse a translation whose answer differs: their library may have changed what a class computes."""
    like, training = next(theirs.parameters()), theirs.training
    if like.dtype != torch.float32 or like.is_meta:
        return
    noise = torch.randn(1, *input_of(ours)["input_size"], generator=torch.Generator().manual_seed(0)).to(like.device)
    try:
        expected = told.answer(theirs.eval()(noise))
    finally:
        theirs.train(training)
    got = ours.eval()(noise)
    if got.shape != expected.shape or (got - expected).abs().max() > CLOSE * expected.abs().max().clamp(min=1e-6):
        raise ValueError(
            f"cannot adopt {type(theirs).__name__}: as timm's {told.name} it answers differently; "
            "its library may be of a version that is not known here"
        )
