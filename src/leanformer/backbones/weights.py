"""Weights from a file: read without executing code, brought under the model's keys, checked, and only then loaded.

file → out of its nest, without wrapper prefixes → our keys → positions of another size resampled, if asked → model
"""

import argparse
import math
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from timm.layers import resample_abs_pos_embed, resize_rel_pos_bias_table
from torch import Tensor, nn

from ..core import check_file, one_line
from ..layers.layout import resample_map
from ..layers.mixers import resample_filter
from ..lazy import READERS
from .fits import check_keys, check_plain

NESTED = ("model", "state_dict", "model_ema", "state_dict_ema")
PREFIXES = ("module.", "_orig_mod.")
UNUSED = ("attn_mask", "relative_position_index", "mask_token")
"""What released files hold beside weights: buffers that follow from the sizes, and a token of pre-training alone."""


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a weights file, out of its nest and without wrapper prefixes; no code is executed.

    >>> read_weights("deit_small.pth")["cls_token"].shape  # doctest: +SKIP
    torch.Size([1, 1, 384])
    """
    path = check_file(path, "the checkpoint ")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    tensors = unpacked(content, str(path))
    check_plain(tensors, str(path))
    return tensors


def unpacked(content: Any, source: str) -> dict[str, Tensor]:
    """The state dict in what a weights file holds, out of its nest and without wrapper prefixes.

    Args:
        content: A state dict, or a dict that has one beside other things.
        source: What the error calls it.

    Raises:
        ValueError: It is neither, or some keys are not text.

    >>> unpacked({"model": {"module.bias": torch.zeros(1)}, "epoch": 3}, "deit_small.pth")
    {'bias': tensor([0.])}
    """
    for nest in NESTED:
        if isinstance(content, dict) and isinstance(content.get(nest), dict):
            content = content[nest]
            break
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{source} holds no state dict, neither at the top nor under {', '.join(NESTED)}")
    odd = next((str(key)[:80] for key in content if not isinstance(key, str)), None)
    if odd is not None:
        raise ValueError(f"{source} has the key {odd}, which is no text: it is not the state dict of a model")
    while prefix := _shared_prefix(content):
        content = {key.removeprefix(prefix): value for key, value in content.items()}
    return content


def in_our_keys(
    name: str, model: nn.Module, tensors: dict[str, Tensor], resample_positions: bool = False
) -> dict[str, Tensor]:
    """Weights under the model's keys, where they have those of its authors and leanformer or timm knows them.

    Args:
        name: The model's name.
        model: The model that they are for.
        tensors: The weights; they stay as they are where all keys are the model's, or nobody knows them.
        resample_positions: Whether timm's converter may resample positions of another size, as it does unasked.
    """
    if not set(tensors) - set(model.state_dict()):
        return tensors
    if name in READERS:
        return READERS[name](tensors, model)
    return _as_timm_reads(model, tensors, resample_positions)


def load_weights(
    model: nn.Module,
    tensors: dict[str, Tensor],
    source: str = "the state dict",
    resample_positions: bool = False,
    grid: tuple[int, int] | None = None,
) -> None:
    """Load a state dict strictly, with one error that lists what is missing, unexpected or of another shape.

    Args:
        model: The model.
        tensors: The weights.
        source: What the error calls them.
        resample_positions: Whether positions of another input size are resampled to the model's.
        grid: Height and width of the plane of patches that the weights are for; a square where it is not given.
    """
    if resample_positions:
        wanted = model.state_dict()
        tensors = {
            key: _resampled(model, key, value, wanted[key], grid) if key in wanted else value
            for key, value in tensors.items()
        }
    check_keys(model.state_dict(), tensors, source)
    model.load_state_dict(tensors)


def _shared_prefix(tensors: Mapping[str, Tensor]) -> str:
    """The prefix of a wrapper that every key has, or nothing."""
    found = (prefix for prefix in PREFIXES if tensors and all(key.startswith(prefix) for key in tensors))
    return next(found, "")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            if "leanformer" in (file.metadata() or {}):
                raise ValueError(
                    f"{path} is a leanformer checkpoint and says itself what it is: use lf.load('{path}'), or on the "
                    "command line give the file in place of the model's name"
                )
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {one_line(error)}") from error


def _read_pickle(path: Path) -> Any:
    try:
        # training scripts store their options beside the weights; a Namespace is data, not code
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of kinds of tensors that are refused below
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can fail anywhere
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"{path} is not a file of plain weights: {one_line(first)}") from error


def _as_timm_reads(model: nn.Module, tensors: dict[str, Tensor], resample_positions: bool) -> dict[str, Tensor]:
    """Weights by the converter that timm has for the files of the model's authors.

    They stay as they are where the converter leaves foreign keys or drops weights, and positions stay of the size that
    they are unless resampling was asked for: what does not fit is refused under the keys of the file.
    """
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return tensors
    try:
        found: dict[str, Tensor] = convert(dict(tensors), model)
    except Exception:  # it is written for released files: those of another model may trip it anywhere
        return tensors
    weights = [key for key in tensors if not key.endswith(UNUSED)]
    if set(found) - set(model.state_dict()) or len(found) < len(weights):
        return tensors
    if resample_positions:
        return found
    return {k: tensors[k] if k in tensors and _is_computed(tensors[k], v) else v for k, v in found.items()}


def _is_computed(before: Tensor, after: Tensor) -> bool:
    """Whether a tensor of another shape holds other numbers, as resampled ones do; slices and views hold the same."""
    apart = before.untyped_storage().data_ptr() != after.untyped_storage().data_ptr()
    return apart and before.shape != after.shape


def _resampled(model: Any, key: str, value: Tensor, wanted: Tensor, grid: tuple[int, int] | None) -> Tensor:
    """Position embeddings, Swin's tables and GFNet's filters for the model's grid; any other tensor as it is."""
    if key == "pos_embed":
        return _resampled_sequence(model, value, wanted, grid)
    if value.shape == wanted.shape:
        return value
    module: Any = model.get_submodule(key.rpartition(".")[0])
    if key.endswith(".pos_embed"):  # of a MetaFormer's stage, which is a map
        return resample_map(value.float(), wanted, module.layout).to(value.dtype)
    if key.endswith("relative_position_bias_table"):
        return resize_rel_pos_bias_table(value, module.window_size, tuple(wanted.shape))
    if key.endswith("complex_weight"):
        return resample_filter(value, module.size)
    return value


def _resampled_sequence(model: Any, value: Tensor, wanted: Tensor, grid: tuple[int, int] | None) -> Tensor:
    """Positions (1, P + H*W, C) of `grid`, for the model's grid."""
    if grid is None and value.shape == wanted.shape:
        return value
    size = [*model.patch_embed.grid_size]
    prefix = wanted.shape[1] - math.prod(size)
    old = [*(grid or _square(value.shape[1] - prefix))]
    antialias = getattr(model, "antialias", True)  # as the model itself would resample them
    return resample_abs_pos_embed(value, size, old, num_prefix_tokens=prefix, antialias=antialias)


def _square(patches: int) -> tuple[int, int]:
    side = math.isqrt(max(patches, 0))
    if side**2 != patches:
        raise ValueError(f"the checkpoint has positions for {patches} patches, not a square: it cannot be resampled")
    return side, side
