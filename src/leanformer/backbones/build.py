"""create and load: a model by its name, with weights from a local file, or from the card of a checkpoint."""

import contextlib
import difflib
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import timm
import torch
from timm.layers import PatchEmbed, to_2tuple
from torch import Tensor, nn

from ..core import (
    Card,
    apply,
    card_of,
    fold,
    image_size,
    input_of,
    one_line,
    pooling_of,
    read,
    set_card,
    set_classes,
    set_input,
)
from ..core.card import CHECKS
from ..core.checked import check_numbers
from .fetching import NotFetched, architecture, fetching, stands_elsewhere
from .fits import FLOATS, building, check_keys, check_size
from .registry import AS_IS, MODELS, build, known
from .timm import adopt, understood
from .weights import in_our_keys, load_weights, read_weights

SOURCES = ("checkpoint", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
"""Arguments that name a place to fetch weights from. They stand on no card: loading a file reads that file alone."""

DEPTHS = ("depth", "depths", "num_blocks")
"""Arguments that count blocks, of which each has tensors of its own."""


def create(
    name: str,
    checkpoint: str | os.PathLike[str] | None = None,
    *,
    resample_positions: bool = False,
    **arguments: Any,
) -> nn.Module:
    """A leanformer or timm model by name, adopted; weights from a local `.pth`, `.pt`, `.bin` or `.safetensors`.

    Args:
        name: A model of leanformer or timm, or one on Hugging Face's hub as timm writes it: `hf-hub:timm/…`.
            `as-is/name` is timm's model without block form: any CNN, to learn from.
        checkpoint: A file with its weights, as they are here or, where leanformer or timm knows their keys, as the
            model's authors released them.
        resample_positions: Whether position embeddings of another input size are resampled to this one's; otherwise
            they are refused.
        **arguments: Those of `timm.create_model`; `pretrained=True` fetches the weights where there is a network.

    >>> import leanformer as lf
    >>> lf.create("deit_tiny_patch16_224", num_classes=10).head.out_features
    10
    """
    model = _build(name, arguments)
    if stands_elsewhere(name.removeprefix(AS_IS)):  # the card says how the model is made without a network
        found, written = architecture(name.removeprefix(AS_IS), arguments.get("cache_dir"))
        name = f"{AS_IS}{found}" if name.startswith(AS_IS) else found
        arguments = {**_sizes(model), "num_classes": model.num_classes, **written, **arguments}
    given = [arguments.get(source) for source in ("pretrained_cfg", "pretrained_cfg_overlay")]
    if any(given):  # the card keeps what they say of the input, and timm takes sizes from them too
        for described in given:
            set_input(model, described if isinstance(described, dict) else {})
        arguments = {**_sizes(model), **arguments}
    if checkpoint is not None:
        tensors = in_our_keys(name.removeprefix(AS_IS), model, read_weights(checkpoint), resample_positions)
        load_weights(model, tensors, source=str(checkpoint), resample_positions=resample_positions)
    if hasattr(model, "card"):  # with methods on it already
        return model
    made = {key: value for key, value in arguments.items() if key not in SOURCES}
    if name.startswith(AS_IS):
        return set_card(model, Card(backbone=name, arguments=made))
    return adopt(model, name, made)


def create_teacher(name: str, checkpoint: str | os.PathLike[str] | None = None, **arguments: Any) -> nn.Module:
    """A model to learn from: as `create` gives it where its blocks are understood, else as timm has it, such as a CNN.

    Args:
        name: A leanformer or timm model.
        checkpoint: Its weights.
        arguments: Those of `timm.create_model`.

    >>> card_of(create_teacher("resnet18")).backbone, card_of(create_teacher("deit_tiny_patch16_224")).backbone
    ('as-is/resnet18', 'deit_tiny_patch16_224')
    """
    if name not in MODELS and (timm.is_model(name) or stands_elsewhere(name)):
        with torch.device("meta"):
            shape = _build(name, {**arguments, "pretrained": False})
        name = name if understood(shape) else f"{AS_IS}{name}"
    return create(name, checkpoint, **arguments)


def load(path: str | os.PathLike[str]) -> nn.Module:
    """The model that `lf.save` wrote, rebuilt from the file alone, in evaluation mode.

    >>> import leanformer as lf
    >>> model = lf.load("lean.safetensors")  # doctest: +SKIP
    """
    card, tensors = read(path)
    check_card(card, tensors, str(path))
    with _told(f"the card in {path}"):
        model = from_card(card)
    dtypes = Counter(value.dtype for value in tensors.values() if value.dtype in FLOATS)
    model = model.to(dtypes.most_common(1)[0][0])
    model.load_state_dict(tensors, assign=len(dtypes) > 1)  # assigned, each tensor keeps a dtype of its own
    return model.eval()


def from_card(card: Card) -> nn.Module:
    """The model that a card describes, with fresh weights."""
    sources = [name for name in card.arguments if name in SOURCES]
    if sources or stands_elsewhere(card.backbone.removeprefix(AS_IS)):
        source = sources[0] if sources else "its name"
        raise ValueError(
            f"the card of {card.backbone} asks for weights from elsewhere ({source}); it was tampered with"
        )
    model: Any = create(card.backbone, **card.arguments)
    if card.global_pool is not None and card.global_pool != pooling_of(model):
        try:
            model.reset_classifier(model.num_classes, card.global_pool)
        except AssertionError as error:
            raise ValueError(f"{card.backbone} has no pooling '{card.global_pool}', as its card says") from error
    model = apply(model, *card.methods)
    if card.fused:
        model = fold(model)
    if card.input is not None:
        set_input(model, card.input)
    set_card(model, card_of(model).replace(official=card.official, optimised=card.optimised))
    return model if card.classes is None else set_classes(model, card.classes)


def check_card(card: Card, tensors: dict[str, Tensor], source: str) -> None:
    """Refuse a card that does not describe these tensors, before anything is allocated for the model it names.

    Args:
        card: What the file says of the model.
        tensors: What the file holds; only shapes and dtypes are looked at.
        source: What messages call the file.
    """
    where = f"the card in {source}"
    widest = max((size for value in tensors.values() for size in value.shape), default=0)
    check_numbers(card.arguments, 65_536 + 4 * max(widest, len(tensors)), where)
    check_numbers([card.arguments.get(name) for name in DEPTHS], max(len(tensors), len(DEPTHS)), where)
    if len(card.methods) > len(tensors):
        raise ValueError(f"{where} names {len(card.methods)} methods, but there are {len(tensors)} tensors")
    with _told(where), building(tensors):
        model = from_card(card)
        check_size(model, input_of(model)["input_size"], tensors)
    check_keys(model.state_dict(), tensors, source)
    if not any(value.dtype in FLOATS for value in tensors.values()):
        raise ValueError(f"{source} has no weights that are floating-point numbers")


CHECKS.append(check_card)


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
    """Whatever goes wrong while a card is followed is the card's fault, and said in one line."""
    try:
        yield
    except Exception as error:  # a lie trips each architecture and method in its own way
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__} "
        raise ValueError(f"{where} cannot be followed: {kind}{one_line(error)}") from error


def _sizes(model: nn.Module) -> dict[str, Any]:
    """Channels and image size as arguments, where a model was built for them."""
    size = image_size(model)
    found = {"in_chans": getattr(model, "in_chans", None), "img_size": None if size is None else list(to_2tuple(size))}
    return {name: value for name, value in found.items() if value is not None}


def _build(name: str, arguments: dict[str, Any]) -> nn.Module:
    plain = name.removeprefix("timm/").removeprefix(AS_IS)
    if not known(name) and not stands_elsewhere(plain):
        near = difflib.get_close_matches(name, [*MODELS, *timm.list_models()], n=3)
        raise ValueError(f"unknown model '{name}'" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    try:
        with fetching(plain, bool(arguments.get("pretrained"))):
            model = build(name, **arguments)
    except NotFetched:
        raise
    except Exception as error:  # arguments are the user's, and each architecture trips over wrong ones in its own way
        raise ValueError(f"{name} cannot be built with {one_line(arguments, 200)}: {one_line(error)}") from error
    _check_image_size(name, model)
    return model


def _check_image_size(name: str, model: Any) -> None:
    """timm builds models of any image size and refuses the images later; say it here."""
    embed = getattr(model, "patch_embed", None) or getattr(model, "stem", None)
    if type(embed) is not PatchEmbed or embed.dynamic_img_pad or embed.img_size is None:
        return
    if any(
        size % patch or size < patch
        for size, patch in zip(to_2tuple(embed.img_size), to_2tuple(embed.patch_size), strict=True)
    ):
        raise ValueError(f"{name} takes images whose sides are multiples of {embed.patch_size}, not {embed.img_size}")
