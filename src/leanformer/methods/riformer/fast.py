"""Stages without token mixer laid out for speed: one pass a block, whose norms need no pass of their own."""

from typing import Any

from timm.layers import Mlp
from torch import Tensor, nn

from ...core import H200, Block, Branch, LocalRewrite, ThreeProducts
from .affine import NormResidual
from .kernels.mixer_free import block_by_products, channel_sums, in_one_pass, one_pass_takes, path_block_by_products


class MixerFreeBlock(nn.Module):
    """The weights of one mixer-free block, its LayerScale folded: (B, N, C) and channel sums in and out."""

    def __init__(self, block: Any):
        super().__init__()
        norm1, branch = block.mix.norm, block.ffn
        scale = getattr(branch.scale, "gamma", None)
        w2, b2 = branch.fn.fc2.weight.detach().flatten(1), branch.fn.fc2.bias.detach()
        if scale is not None:
            w2, b2 = (scale.double()[:, None] * w2.double()).to(w2), (scale.double() * b2.double()).to(b2)
        w1, b1 = branch.fn.fc1.weight.detach().flatten(1), branch.fn.fc1.bias.detach()
        pairs = {
            "norm1": (norm1.weight, norm1.bias),
            "norm2": (branch.norm.weight, branch.norm.bias),
            "fc1": (w1, b1),
            "fc2": (w2, b2),
        }
        for name, pair in pairs.items():
            for part, tensor in zip(("weight", "bias"), pair, strict=True):
                self.register_parameter(f"{name}_{part}", nn.Parameter(tensor.detach().clone()))
        self.eps = norm1.eps
        self.one_pass = one_pass_takes(norm1.weight.numel(), len(w1))

    def forward(self, x: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        norm1, norm2 = [self.norm1_weight, self.norm1_bias], [self.norm2_weight, self.norm2_bias]
        pairs = (norm1, norm2, [self.fc1_weight, self.fc1_bias], [self.fc2_weight, self.fc2_bias])
        if in_one_pass(x, self.one_pass):
            from .kernels.mixer_free_triton import block_in_one_pass

            return block_in_one_pass(x, sums, *pairs, self.eps)
        return block_by_products(x, sums, *(tuple(pair) for pair in pairs), self.eps)  # type: ignore[arg-type]


class MixerFreePathBlock(nn.Module):
    """One mixer-free block whose FFN is three products: (B, N, C) and channel sums in and out."""

    def __init__(self, block: Any):
        super().__init__()
        norm, weights = block.mix.norm, block.ffn.three_products()
        self.norm = nn.ParameterList(nn.Parameter(t.detach().clone()) for t in (norm.weight, norm.bias))
        self.weights = nn.ParameterList(nn.Parameter(t.detach().clone()) for t in weights)
        self.eps = norm.eps
        self.one_pass = one_pass_takes(len(weights[0]), len(weights[2]))

    def forward(self, x: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        norm, weights = list(self.norm), list(self.weights)
        if in_one_pass(x, self.one_pass):
            from .kernels.mixer_free_triton import path_block_in_one_pass

            return path_block_in_one_pass(x, sums, norm, weights, self.eps)
        return path_block_by_products(x, sums, tuple(norm), weights, self.eps)  # type: ignore[arg-type]


class MixerFreeStage(nn.Module):
    """A sequence of mixer-free blocks over a map (B, C, H, W), whose norms need no pass of their own."""

    def __init__(self, blocks: Any):
        super().__init__()
        self.blocks = nn.ModuleList(_laid_out(block) for block in blocks)

    def forward(self, x: Tensor) -> Tensor:
        batch, chans, height, width = x.shape
        rows = x.permute(0, 2, 3, 1).reshape(batch, height * width, chans).contiguous()  # (B, N, C)
        sums = channel_sums(rows)
        for block in self.blocks:
            rows, sums = block(rows, sums)
        return rows.view(batch, height, width, chans).permute(0, 3, 1, 2)


def _laid_out(block: Any) -> nn.Module:
    return MixerFreePathBlock(block) if isinstance(block.ffn, ThreeProducts) else MixerFreeBlock(block)


def _mixer_free(module: Any) -> bool:
    return isinstance(module, nn.Sequential) and len(module) > 0 and all(_mixer_free_block(b) for b in module)


def _mixer_free_block(block: Any) -> bool:
    if not isinstance(block, Block) or block.layout != "NCHW" or not isinstance(block.pre, nn.Identity):
        return False
    mix, ffn = block.mix, block.ffn
    if type(mix) is NormResidual and isinstance(ffn, ThreeProducts):
        return _whole_map_norm(mix.norm) and isinstance(mix.skip, nn.Identity) and ffn.three_products() is not None
    if type(mix) is not NormResidual or type(ffn) is not Branch or type(ffn.fn) is not Mlp:
        return False
    norms = all(_whole_map_norm(n) for n in (mix.norm, ffn.norm)) and mix.norm.eps == ffn.norm.eps
    skips = isinstance(mix.skip, nn.Identity) and isinstance(ffn.skip, nn.Identity)
    scaled = isinstance(ffn.scale, nn.Identity) or hasattr(ffn.scale, "gamma")
    mlp = type(ffn.fn.act) is nn.GELU and isinstance(ffn.fn.norm, nn.Identity)
    mlp = mlp and all(type(fc) in (nn.Linear, nn.Conv2d) for fc in (ffn.fn.fc1, ffn.fn.fc2))
    return all((norms, skips, scaled, mlp, ffn.fn.fc1.bias is not None, ffn.fn.fc2.bias is not None))


def _whole_map_norm(norm: Any) -> bool:
    return isinstance(norm, nn.GroupNorm) and norm.num_groups == 1 and norm.bias is not None


REWRITES = (LocalRewrite("mixer-free stages in one pass", _mixer_free, MixerFreeStage, measured_on=H200),)
