"""guess: the name and arguments with which timm makes a given model again, or nothing if they do not.

A few arguments can be read off a model. Those that read differently on timm's default model of the name are given to
timm, and the outcome must be the same modules with the same settings and tensors of the same shapes.
"""

from typing import Any

import timm
import torch
from timm.layers import DropPath
from torch import nn

from ..core import input_of, pooling_of
from .registry import MODELS

IGNORED = ("training", "grad_checkpointing", "feature_info", "pretrained_cfg", "default_cfg")


def guess(model: Any) -> tuple[str, dict[str, Any]]:
    """timm's name of a model and the arguments that rebuild it, or an empty name.

    >>> guess(timm.create_model("deit_tiny_patch16_224", num_classes=10, drop_path_rate=0.5))
    ('deit_tiny_patch16_224', {'num_classes': 10, 'drop_path_rate': 0.5})
    """
    name = (getattr(model, "pretrained_cfg", None) or {}).get("architecture", "")
    if not name or not timm.is_model(name):
        return "", {}
    try:
        with torch.device("meta"):
            usual = _readings(timm.create_model(name))
            arguments = {key: value for key, value in _readings(model).items() if value != usual[key]}
            again = timm.create_model(name, **arguments)
    except (TypeError, RuntimeError, AssertionError):
        return "", {}
    if signature(again) != signature(model):
        return "", {}
    return f"timm/{name}" if name in MODELS else name, arguments


def _readings(model: Any) -> dict[str, Any]:
    rates = [module.drop_prob for module in model.modules() if isinstance(module, DropPath)]
    return {
        "num_classes": model.num_classes,
        "in_chans": model.in_chans,
        "img_size": list(input_of(model)["input_size"][1:]),
        "dynamic_img_size": getattr(model, "dynamic_img_size", False),
        "global_pool": pooling_of(model),
        "drop_rate": getattr(getattr(model, "head_drop", model), "p", getattr(model, "drop_rate", 0.0)),
        "drop_path_rate": max(rates, default=0.0),
    }


def signature(model: nn.Module) -> dict[str, Any]:
    """Type and plain settings of every module, shape of every tensor: equal for models that compute the same
    function of their weights.

    >>> signature(nn.Dropout(0.1)) == signature(nn.Dropout(0.2))
    False
    """
    modules = {path: (type(module), _settings(module)) for path, module in model.named_modules()}
    return modules | {f"{key} shape": tuple(value.shape) for key, value in model.state_dict().items()}


def _settings(module: nn.Module) -> dict[str, Any]:
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and key not in IGNORED and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)
