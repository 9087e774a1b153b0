"""Rewrites: each takes a model to an equivalent one, or says that it has nothing to do by returning None."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from timm.layers import Mlp
from torch import nn

from ..core import Block, Branch
from ..kernels.thin_conv import MOST_OUTPUTS
from ..layers.affine import NormResidual
from ..layers.idle import FusedFFN
from ..layers.mixers import Pooling
from ..layers.patches import disjoint
from ..layers.tokens import Choose
from .modules import ChooseByCounting, GeluMlp, MixerFreeStage, PatchProduct, PooledBranch, RePaProducts, ThinConv
from .reduce import in_one_pass, takes_class_row, takes_one_pass, with_class_row
from .slim import OnePassSlimming, slims_in_one_pass

Rewrite = Callable[[nn.Module], nn.Module | None]


def channels_last(model: nn.Module) -> nn.Module | None:
    """Maps with channels last in memory, for models that convolve."""
    if not any(isinstance(m, nn.Conv2d) and m.kernel_size[0] > 1 for m in model.modules()):
        return None
    return copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def patches_by_product(model: nn.Module) -> nn.Module | None:
    """Patch embeddings as one matrix product: libraries run them as general convolutions, many times slower."""
    return _replace(model, disjoint, PatchProduct)


def thin_convolutions(model: nn.Module) -> nn.Module | None:
    """Convolutions of the colours as one product that gathers its patches, and GELU with it where that comes next."""
    new = _replace(model, _gelu_stem, _with_thin_conv)
    return _replace(new or model, _thin, ThinConv) or new


def activation_in_product(model: nn.Module) -> nn.Module | None:
    """GELU computed in the epilogue of the product before it: the hidden activation is written once, read once."""
    return _replace(model, _gelu_mlp, lambda mlp: GeluMlp(mlp.fc1, mlp.fc2))


def repa_by_products(model: nn.Module) -> nn.Module | None:
    """RePa's fused FFN as three products that do everything else in passing."""
    return _replace(model, _gelu_repa, RePaProducts)


def mixer_free_stages(model: nn.Module) -> nn.Module | None:
    """Stages without token mixer in one pass a block."""
    return _replace(model, _mixer_free, MixerFreeStage)


def class_row_with_attention(model: nn.Module) -> nn.Module | None:
    """Where tokens are ranked by the class token's attention, that row of the map from the attention's own kernel."""
    return _replace(model, takes_class_row, with_class_row)


def tokens_by_counting(model: nn.Module) -> nn.Module | None:
    """Where tokens are chosen: each one's rank by counting those ahead of it, instead of sorting."""
    return _replace(model, lambda module: type(module) is Choose, lambda choose: ChooseByCounting())


def tokens_in_one_pass(model: nn.Module) -> nn.Module | None:
    """Where tokens leave: the residual sum, the kept tokens, the fused rest and the next norm in one pass."""
    return _replace(model, takes_one_pass, in_one_pass)


def slimming_in_one_pass(model: nn.Module) -> nn.Module | None:
    """Where tokens are slimmed: the softmax, the mixtures and the tokens that pass by in one pass."""
    return _replace(model, slims_in_one_pass, OnePassSlimming)


def pooling_in_one_pass(model: nn.Module) -> nn.Module | None:
    """Pooling as token mixer: one pass for the statistics, one for the norm, the windows and the residual sum."""
    return _replace(model, _pooled, PooledBranch)


REWRITES: dict[str, Rewrite] = {
    "patches by product": patches_by_product,
    "first convolution by product": thin_convolutions,
    "channels last": channels_last,
    "activation in product": activation_in_product,
    "RePa by products": repa_by_products,
    "mixer-free stages in one pass": mixer_free_stages,
    "attention with class row": class_row_with_attention,
    "tokens ranked by counting": tokens_by_counting,
    "tokens reorganised in one pass": tokens_in_one_pass,
    "tokens slimmed in one pass": slimming_in_one_pass,
    "pooling with its norm in one pass": pooling_in_one_pass,
}
WHEN_MEASURED: frozenset[str] = frozenset()
"""Steps taken only where a measurement in the same search shows a gain; all others are known to be good."""


def _replace(model: nn.Module, fits: Callable[[Any], bool], build: Callable[[Any], nn.Module]) -> nn.Module | None:
    paths = [path for path, module in model.named_modules() if path and fits(module)]
    if not paths:
        return None
    new = copy.deepcopy(model)
    for path in paths:
        new.set_submodule(path, build(new.get_submodule(path)).eval())
    return new


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


def _with_thin_conv(stem: Any) -> Any:
    stem.conv1, stem.act1 = ThinConv(stem.conv1, gelu=True), nn.Identity()
    return stem


def _gelu_mlp(module: Any) -> bool:
    if type(module) is not Mlp or type(module.act) is not nn.GELU or not isinstance(module.norm, nn.Identity):
        return False
    return all(type(fc) is nn.Linear and fc.bias is not None for fc in (module.fc1, module.fc2))


def _gelu_repa(module: Any) -> bool:
    if type(module) is not FusedFFN or module.fc2 is None or type(module.act) is not nn.GELU:
        return False
    plain = all(type(fc) in (nn.Linear, nn.Conv2d) for fc in (module.fc1, module.fc2, module.fc3))
    return plain and module.norm is None and module.skip is None and module.fc1.bias is not None


def _mixer_free(module: Any) -> bool:
    return isinstance(module, nn.Sequential) and len(module) > 0 and all(_mixer_free_block(b) for b in module)


def _mixer_free_block(block: Any) -> bool:
    if not isinstance(block, Block) or block.layout != "NCHW" or not isinstance(block.pre, nn.Identity):
        return False
    mix, ffn = block.mix, block.ffn
    if type(mix) is not NormResidual or type(ffn) is not Branch or type(ffn.fn) is not Mlp:
        return False
    norms = all(_whole_map_norm(n) for n in (mix.norm, ffn.norm)) and mix.norm.eps == ffn.norm.eps
    skips = isinstance(mix.skip, nn.Identity) and isinstance(ffn.skip, nn.Identity)
    scaled = isinstance(ffn.scale, nn.Identity) or hasattr(ffn.scale, "gamma")
    mlp = type(ffn.fn.act) is nn.GELU and isinstance(ffn.fn.norm, nn.Identity)
    mlp = mlp and all(type(fc) in (nn.Linear, nn.Conv2d) for fc in (ffn.fn.fc1, ffn.fn.fc2))
    return all((norms, skips, scaled, mlp, ffn.fn.fc1.bias is not None, ffn.fn.fc2.bias is not None))


def _pooled(branch: Any) -> bool:
    if type(branch) is not Branch or type(branch.fn) is not Pooling or branch.fn.layout != "NCHW":
        return False
    windows = branch.fn.pool.kernel_size == 3 and isinstance(branch.skip, nn.Identity)
    scaled = isinstance(branch.scale, nn.Identity) or hasattr(branch.scale, "gamma")
    return windows and scaled and isinstance(branch.norm, nn.GroupNorm) and branch.norm.num_groups == 1


def _whole_map_norm(norm: Any) -> bool:
    return isinstance(norm, nn.GroupNorm) and norm.num_groups == 1 and norm.bias is not None
