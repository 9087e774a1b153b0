"""create and load: a model by its name, with weights from a local file, or from the card of a checkpoint."""

import difflib
import os
import pickle
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError, safe_open
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from ..core import Card, apply, card_of, fold, read, set_card
from .registry import MODELS, build
from .timm import adopt

NESTED = ("model", "state_dict", "model_ema", "state_dict_ema")
PREFIXES = ("module.", "_orig_mod.")


def create(
    name: str,
    checkpoint: str | os.PathLike[str] | None = None,
    *,
    resample_positions: bool = False,
    **arguments: Any,
) -> nn.Module:
    """A leanformer or timm model by name, adopted; weights from a local `.pth`, `.pt`, `.bin` or `.safetensors`.

    The other arguments are those of `timm.create_model`. With `resample_positions`, position embeddings of another
    input size are resampled to this one's; without, they are refused.

    >>> import leanformer as lf
    >>> lf.create("deit_tiny_patch16_224", num_classes=10).head.out_features
    10
    """
    model = _build(name, arguments)
    if checkpoint is not None:
        load_weights(model, read_weights(checkpoint), source=str(checkpoint), resample_positions=resample_positions)
    return adopt(model, name, arguments)


def load(path: str | os.PathLike[str]) -> nn.Module:
    """The model that `lf.save` wrote, rebuilt from the file alone, in evaluation mode.

    >>> import leanformer as lf
    >>> model = lf.load("lean.safetensors")  # doctest: +SKIP
    """
    card, tensors = read(path)
    model = from_card(card)
    _check_keys(model.state_dict(), tensors, str(path))
    dtypes = {value.dtype for value in tensors.values() if value.is_floating_point()}
    if len(dtypes) == 1:
        model = model.to(dtypes.pop())
    model.load_state_dict(tensors)
    return model.eval()


def from_card(card: Card) -> nn.Module:
    """The model that a card describes, with fresh weights."""
    model = create(card.backbone, **card.arguments)
    model = apply(model, *card.methods)
    if card.fused:
        model = fold(model)
    return set_card(model, card_of(model).replace(official=card.official))


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a weights file, out of its nest and without wrapper prefixes; no code is executed.

    >>> read_weights("deit_small.pth")["cls_token"].shape  # doctest: +SKIP
    torch.Size([1, 1, 384])
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"the checkpoint {path} does not exist")
    tensors = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def load_weights(
    model: nn.Module, tensors: dict[str, Tensor], source: str = "the state dict", resample_positions: bool = False
) -> None:
    """Load a state dict strictly, with one error that lists what is missing, unexpected or of another shape."""
    if resample_positions:
        tensors = _resample_positions(model, tensors)
    _check_keys(model.state_dict(), tensors, source)
    model.load_state_dict(tensors)


def _build(name: str, arguments: dict[str, Any]) -> nn.Module:
    if name not in MODELS and not timm.is_model(name.removeprefix("timm/")):
        near = difflib.get_close_matches(name, [*MODELS, *timm.list_models()], n=3)
        raise ValueError(f"unknown model '{name}'" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    try:
        return build(name, **arguments)
    except (TypeError, AssertionError, RuntimeError) as error:
        raise ValueError(f"{name} cannot be built with {arguments}: {error}") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            if "leanformer" in (file.metadata() or {}):
                raise ValueError(f"{path} is a leanformer checkpoint and says itself what it is: use lf.load('{path}')")
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"{path} is not a file of plain weights: {first}") from error
    for nest in NESTED:
        if isinstance(content, dict) and isinstance(content.get(nest), dict):
            content = content[nest]
            break
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"{path} holds no state dict, neither at the top nor under {', '.join(NESTED)}")
    return content


def _resample_positions(model: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    positions = tensors.get("pos_embed")
    if positions is None or getattr(model, "pos_embed", None) is None or positions.shape == model.pos_embed.shape:
        return tensors
    prefix = 0 if getattr(model, "no_embed_class", False) else getattr(model, "num_prefix_tokens", 0)
    resampled = resample_abs_pos_embed(positions, model.patch_embed.grid_size, num_prefix_tokens=prefix)
    return tensors | {"pos_embed": resampled}


def _check_keys(wanted: dict[str, Tensor], given: dict[str, Tensor], source: str) -> None:
    shapes = [
        f"{key} is {tuple(given[key].shape)} instead of {tuple(wanted[key].shape)}"
        for key in wanted
        if key in given and given[key].shape != wanted[key].shape
    ]
    problems = [
        f"{label} {_some(found)}"
        for label, found in (
            ("missing:", [key for key in wanted if key not in given]),
            ("unexpected:", [key for key in given if key not in wanted]),
            ("of another shape:", shapes),
        )
        if found
    ]
    if problems:
        raise ValueError(f"{source} is for another model; {'; '.join(problems)}")


def _some(items: list[str], most: int = 4) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{', '.join(items[:most])}{more} ({len(items)} in all)"
