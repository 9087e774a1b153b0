"""Modules that compute what others do, laid out for speed. All are for inference; all take over trained weights."""

from typing import Any

from torch import Tensor, nn

from ..kernels.choose import MOST_SCORES, choose_by_counting
from ..kernels.linear import linear_gelu, repa_ffn
from ..kernels.mixer_free import block_by_products, channel_sums
from ..kernels.pool import pool_in_one_pass
from ..kernels.thin_conv import thin_conv, weight_of_product
from ..layers.patches import patch_product
from ..layers.tokens import Choose

ONE_PASS_WIDTH = 192
"""Up to this width a block runs as one kernel; above, matrix products by the library are faster."""


class PatchProduct(nn.Module):
    """A convolution whose patches do not overlap, as one matrix product: (B, C, H, W) → (B, D, H / p, W / p).

    >>> conv = nn.Conv2d(3, 8, 4, 4)
    >>> x = torch.randn(2, 3, 8, 8)
    >>> torch.allclose(PatchProduct(conv)(x), conv(x), atol=1e-5)
    True
    """

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        self.patch = conv.kernel_size
        self.weight = nn.Parameter(conv.weight.detach().flatten(1).clone())  # (D, C p p)
        self.bias = None if conv.bias is None else nn.Parameter(conv.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return patch_product(x, self.weight, self.bias, self.patch)


class ThinConv(nn.Module):
    """A convolution of few input channels, with GELU behind it if asked for: (B, C, H, W) → (B, D, H', W').

    >>> conv = nn.Conv2d(3, 8, 3, 2, 1)
    >>> x = torch.randn(2, 3, 8, 8)
    >>> torch.allclose(ThinConv(conv)(x), conv(x), atol=1e-5)
    True
    """

    def __init__(self, conv: nn.Conv2d, gelu: bool = False):
        super().__init__()
        self.shape = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
        self.gelu = gelu
        self.weight = nn.Parameter(weight_of_product(conv.weight.detach()).clone())  # (D, K)
        self.bias = None if conv.bias is None else nn.Parameter(conv.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return thin_conv(x, self.weight, self.bias, *self.shape, self.gelu).permute(0, 3, 1, 2)


class ChooseByCounting(Choose):
    """The indices of the highest scores, each one's rank found by counting those ahead of it.

    >>> ChooseByCounting()(torch.tensor([[0.1, 0.7, 0.2]]), 2)
    tensor([[1, 2]])
    """

    def forward(self, score: Tensor, keep: int) -> Tensor:
        return choose_by_counting(score, keep) if score.shape[1] <= MOST_SCORES else super().forward(score, keep)


class GeluMlp(nn.Module):
    """fc2(gelu(fc1(x))) with the activation in the first product's epilogue."""

    def __init__(self, fc1: nn.Linear, fc2: nn.Linear):
        super().__init__()
        self.fc1, self.fc2 = fc1, fc2

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(linear_gelu(x, self.fc1.weight, self.fc1.bias))


class RePaProducts(nn.Module):
    """RePa's three linears, the sum of the two paths taken inside the last product."""

    def __init__(self, ffn: Any):
        super().__init__()
        weights = (ffn.fc1.weight, ffn.fc1.bias, ffn.fc2.weight, ffn.fc2.bias, ffn.fc3.weight)
        self.w, self.b, self.w_in, self.b_in, self.w_out = (
            nn.Parameter(w.detach().flatten(1) if w.ndim > 1 else w) for w in weights
        )
        self.channels_first = ffn.fc1.weight.ndim == 4

    def forward(self, x: Tensor) -> Tensor:
        if self.channels_first:
            return self._rows(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self._rows(x)

    def _rows(self, x: Tensor) -> Tensor:
        return repa_ffn(x, self.w, self.b, self.w_in, self.b_in, self.w_out)


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
        self.width = norm1.weight.numel()

    def forward(self, x: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        norm1, norm2 = [self.norm1_weight, self.norm1_bias], [self.norm2_weight, self.norm2_bias]
        pairs = (norm1, norm2, [self.fc1_weight, self.fc1_bias], [self.fc2_weight, self.fc2_bias])
        if x.is_cuda and self.width <= ONE_PASS_WIDTH:
            from ..kernels.mixer_free_triton import block_in_one_pass

            return block_in_one_pass(x, sums, *pairs, self.eps)
        return block_by_products(x, sums, *(tuple(pair) for pair in pairs), self.eps)  # type: ignore[arg-type]


class MixerFreeStage(nn.Module):
    """A sequence of mixer-free blocks over a map (B, C, H, W), whose norms need no pass of their own."""

    def __init__(self, blocks: Any):
        super().__init__()
        self.blocks = nn.ModuleList(MixerFreeBlock(block) for block in blocks)

    def forward(self, x: Tensor) -> Tensor:
        batch, chans, height, width = x.shape
        rows = x.permute(0, 2, 3, 1).reshape(batch, height * width, chans).contiguous()  # (B, N, C)
        sums = channel_sums(rows)
        for block in self.blocks:
            rows, sums = block(rows, sums)
        return rows.view(batch, height, width, chans).permute(0, 3, 1, 2)


class PooledBranch(nn.Module):
    """PoolFormer's first branch, `x + s (pool(z) − z)` of z = GN(x), over a map (B, C, H, W): z is never made."""

    def __init__(self, branch: Any):
        super().__init__()
        gain = branch.norm.weight.detach().double()
        scale = getattr(branch.scale, "gamma", None)
        self.gain = nn.Parameter((gain if scale is None else gain * scale.detach().double()).to(branch.norm.weight))
        self.eps = branch.norm.eps

    def forward(self, x: Tensor) -> Tensor:
        rows = x.permute(0, 2, 3, 1).contiguous()  # (B, H, W, C)
        return pool_in_one_pass(rows, self.gain, self.eps).permute(0, 3, 1, 2)
