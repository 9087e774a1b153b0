"""The models that the contract's checks share: each method on each backbone, made once."""

import functools

from helpers import randomise
from torch import nn

import leanformer as lf
from leanformer.core import Method


@functools.cache
def lean(method: Method, backbone: nn.Module) -> nn.Module:
    """The method on the backbone, with all weights moved from their start. Shared: never change it."""
    return randomise(lf.apply(backbone, method)).eval()


@functools.cache
def fused(method: Method, backbone: nn.Module) -> nn.Module:
    """The fused form of `lean`. Shared: never change it."""
    return lf.fuse(lean(method, backbone))


def refusal(method: Method, backbone: nn.Module) -> str | None:
    """Why the method does not serve the backbone; None when it does."""
    reason = None
    try:
        lean(method, backbone)
    except ValueError as error:
        reason = str(error)
    assert reason is None or len(reason) > 20, f"refused without a reason: '{reason}'"
    return reason
