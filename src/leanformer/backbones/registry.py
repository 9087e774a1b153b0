"""Names of leanformer's own architectures. Those that timm lacks are registered with timm as well."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import timm
from timm.models import register_model
from torch import nn

from ..lazy import AROUND, MODELS

AS_IS = "as-is/"
"""Before a name of timm's: the model as timm has it, without blocks that methods could change."""
TIMM_PLUMBING = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")


def register(fn: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Register an entry point `fn(**arguments)` under its own name.

    Where timm has a model of that name (its PoolFormer pools and normalises in another order than the official
    one), timm's stays what it is for `timm.create_model`, and `lf.create` takes ours.
    """

    @functools.wraps(fn)
    def entry(pretrained: bool = False, **arguments: Any) -> nn.Module:
        if pretrained:
            raise ValueError(f"{fn.__name__} has no weights to download; give lf.create a checkpoint file")
        return fn(**{key: value for key, value in arguments.items() if key not in TIMM_PLUMBING})

    MODELS[fn.__name__] = entry
    return entry if timm.is_model(fn.__name__) else register_model(entry)


def register_named(build: Callable[..., nn.Module], models: Mapping[str, Mapping[str, Any]]) -> None:
    """Register an architecture under further names.

    Args:
        build: The entry point.
        models: Name → its arguments, which those of the user override.
    """
    for name, settings in models.items():
        entry = functools.partial(_with_settings, build, settings)
        entry.__name__, entry.__doc__ = name, f"{build.__name__} with the settings of {name}."  # type: ignore[attr-defined]
        entry.__module__ = build.__module__
        register(entry)


def _with_settings(build: Callable[..., nn.Module], settings: Mapping[str, Any], /, **arguments: Any) -> nn.Module:
    return build(**{**settings, **arguments})


def known(name: str) -> bool:
    """Whether there is a model of that name: ours, timm's, or one that is built around a backbone."""
    return name in MODELS or timm.is_model(name.removeprefix("timm/").removeprefix(AS_IS)) or name in AROUND


def build(name: str, **arguments: Any) -> nn.Module:
    """Our architecture of that name, else timm's; `timm/name` and `as-is/name` ask for timm's alone."""
    if name in MODELS:
        return MODELS[name](**arguments)
    if not timm.is_model(name.removeprefix("timm/").removeprefix(AS_IS)) and name in AROUND:
        return AROUND[name](**arguments)
    return timm.create_model(name.removeprefix("timm/").removeprefix(AS_IS), **arguments)
