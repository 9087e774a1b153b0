"""Rewrites: each takes a model to an equivalent one, or says that it has nothing to do by returning None."""

import copy
from typing import Any

import torch
from timm.layers import Mlp
from torch import nn

from ..core import H200, METHODS, Branch, LocalRewrite, Rewrite
from ..layers.layout import AcrossTokens
from ..layers.mixers import Pooling
from ..layers.patches import disjoint
from .kernels.thin_conv import MOST_OUTPUTS
from .modules import GeluMlp, PatchProduct, PooledBranch, ThinConv


def channels_last(model: nn.Module) -> nn.Module | None:
    """Maps with channels last in memory, for models that convolve."""
    if not any(isinstance(m, nn.Conv2d) and m.kernel_size[0] > 1 for m in model.modules()):
        return None
    return copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _thin(module: Any) -> bool:
    if type(module) is not nn.Conv2d or module.groups != 1 or disjoint(module):
        return False
    if module.in_channels > 4 or module.out_channels > MOST_OUTPUTS:
        return False
    square = all(len(set(each)) == 1 for each in (module.kernel_size, module.stride, module.padding))
    plain = module.dilation == (1, 1) and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return square and plain and module.kernel_size[0] > 1


def _gelu_stem(module: Any) -> bool:
    conv, norm, act = (getattr(module, name, None) for name in ("conv1", "bn1", "act1"))
    return _thin(conv) and isinstance(norm, nn.Identity) and type(act) is nn.GELU


def _gathering(module: Any) -> Any:
    """The convolution, or the stem with its first one and GELU, as a product that gathers its patches."""
    if isinstance(module, nn.Conv2d):
        return ThinConv(module)
    module.conv1, module.act1 = ThinConv(module.conv1, gelu=True), nn.Identity()
    return module


def _gelu_mlp(module: Any) -> bool:
    if type(module) is not Mlp or type(module.act) is not nn.GELU or not isinstance(module.norm, nn.Identity):
        return False
    return all(type(fc) is nn.Linear and fc.bias is not None for fc in (module.fc1, module.fc2))


def _pooled(branch: Any) -> bool:
    if type(branch) is not Branch or type(branch.fn) is not Pooling or branch.fn.layout != "NCHW":
        return False
    windows = branch.fn.pool.kernel_size == 3 and isinstance(branch.skip, nn.Identity)
    scaled = isinstance(branch.scale, nn.Identity) or hasattr(branch.scale, "gamma")
    return windows and scaled and isinstance(branch.norm, nn.GroupNorm) and branch.norm.num_groups == 1


def without_depthwise(model: nn.Module) -> bool:
    """Models whose token mixers do not convolve: with those, what layout and stem gain was not seen.

    >>> without_depthwise(nn.Sequential(nn.Conv2d(3, 8, 3))), without_depthwise(nn.Conv2d(8, 8, 3, groups=8))
    (True, False)
    """
    return not any(isinstance(module, nn.Conv2d) and module.groups > 1 for module in model.modules())


CHANNELS_LAST = Rewrite("channels last", channels_last, measured_on=H200, pays_for=without_depthwise)

GENERAL = (
    # libraries run patch embeddings as general convolutions, many times slower
    LocalRewrite("patches by product", disjoint, PatchProduct, measured_on=H200),
    # three colours fill no matrix tile; GELU comes with it where that is next
    LocalRewrite(
        "first convolution by product",
        lambda module: _gelu_stem(module) or _thin(module),
        _gathering,
        measured_on=H200,
        pays_for=without_depthwise,
    ),
    CHANNELS_LAST,
    # the hidden activation is written once and read once; across tokens the input is a turned view, to be copied first
    LocalRewrite(
        "activation in product",
        _gelu_mlp,
        lambda mlp: GeluMlp(mlp.fc1, mlp.fc2),
        not_inside=(AcrossTokens,),
        measured_on=H200,
    ),
    # one pass for the statistics, one for the norm, the windows and the residual sum
    LocalRewrite("pooling with its norm in one pass", _pooled, PooledBranch, measured_on=H200),
)


def rewrites() -> dict[str, Rewrite | LocalRewrite]:
    """Name → rewrite, in the order in which they are tried: those that no method owns, then every method's.

    >>> list(rewrites())[0]
    'patches by product'
    """
    owned = (rewrite for method in METHODS.values() for rewrite in method.rewrites())
    return {rewrite.name: rewrite for rewrite in (*GENERAL, *owned)}
