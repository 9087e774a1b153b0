"""Rewrites before tracing: the same function from operators that every target has.

The Fourier transforms of a global filter become products with the transform's matrices, which for the small planes
of vision models cost little and need no complex numbers:

    X = Fₕ x F_w,   Z = K · X,   y = Re(Fₕ* Z F_w*)        F[j, k] = exp(-2πi jk / n) / √n

B batch, C channels, H x W the plane, K = W/2 + 1 frequencies of a row.

A model for images of any size may be made one for a single size, in which what depends on the size is a constant.

Attention as one operator becomes its three steps, for targets that would take it apart less well by themselves, and
a split becomes slices, for targets that cannot have a list of tensors of any batch size:

    y = softmax(q kᵀ · scale + mask) v
"""

import copy
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from timm.layers import Format, resample_abs_pos_embed
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..layers.mixers import GlobalFilter, PlaneMixer


def dft_tables(n: int, frequencies: int) -> tuple[Tensor, Tensor]:
    """cos and sin of 2π jk / n over √n for n places j and the first frequencies k: (n, K) each, in float64.

    >>> dft_tables(4, 3)[0].shape
    torch.Size([4, 3])
    """
    steps = torch.outer(torch.arange(n), torch.arange(frequencies)) % n  # whole numbers: no angle grows large
    angle = steps.double() * (2 * math.pi / n)
    return angle.cos() / math.sqrt(n), angle.sin() / math.sqrt(n)


class MatrixFilter(PlaneMixer):
    """A global filter whose Fourier transforms are matrix products.

    >>> old = GlobalFilter(8, (4, 6), layout="NCHW")
    >>> x = torch.randn(2, 8, 4, 6)
    >>> (MatrixFilter(old)(x) - old(x)).abs().max() < 1e-5
    tensor(True)
    """

    def __init__(self, old: GlobalFilter):
        super().__init__(old.layout, old.grid)
        height, width = old.size
        weight = old.complex_weight.detach().permute(3, 2, 0, 1)  # (2, C, H, K)
        exact = weight.dtype if weight.dtype == torch.float64 else torch.float32
        cos_h, sin_h = dft_tables(height, height)
        cos_w, sin_w = dft_tables(width, width // 2 + 1)
        # a row's upper frequencies are the conjugates of the lower ones: all but the first and the middle count twice
        twice = torch.full((width // 2 + 1,), 2.0, dtype=torch.float64)
        twice[0] = 1.0
        if width % 2 == 0:
            twice[-1] = 1.0
        tables = {
            "weight": weight, "cos_h": cos_h, "sin_h": sin_h, "cos_w": cos_w, "sin_w": sin_w,
            "back_cos": (cos_w * twice).T, "back_sin": (sin_w * twice).T,
        }  # fmt: skip
        for name, table in tables.items():
            self.register_buffer(name, table.to(exact).contiguous())

    def mix(self, plane: Tensor) -> Tensor:
        x = plane.to(self.cos_w.dtype)  # type: ignore[arg-type]
        re, im = x @ self.cos_w, -(x @ self.sin_w)  # (B, C, H, K)
        re, im = self.cos_h @ re + self.sin_h @ im, self.cos_h @ im - self.sin_h @ re
        re, im = re * self.weight[0] - im * self.weight[1], re * self.weight[1] + im * self.weight[0]  # type: ignore[index]
        re, im = self.cos_h @ re - self.sin_h @ im, self.cos_h @ im + self.sin_h @ re
        return (re @ self.back_cos - im @ self.back_sin).to(plane.dtype)  # (B, C, H, W)


def without_fft(model: nn.Module) -> nn.Module:
    """A copy of `model` whose global filters run as matrix products.

    >>> import leanformer as lf
    >>> tiny = lf.create("gfnet", img_size=32, patch_size=4, embed_dim=[16], depth=[1])
    >>> any(isinstance(m, GlobalFilter) for m in without_fft(tiny).modules())
    False
    """
    new = copy.deepcopy(model)
    for path in [path for path, module in new.named_modules() if isinstance(module, GlobalFilter)]:
        new.set_submodule(path, MatrixFilter(new.get_submodule(path)).to(next(new.parameters()).device))  # type: ignore[arg-type]
    return new


def resampling(model: nn.Module) -> list[VisionTransformer]:
    """The ViTs of a model that resample their positions for every size of images as timm does, with antialiasing."""
    found = [body for body in model.modules() if isinstance(body, VisionTransformer) and body.dynamic_img_size]
    theirs = (VisionTransformer._pos_embed, VisionTransformerDistilled._pos_embed)
    return [body for body in found if type(body)._pos_embed in theirs]


def at_one_size(model: nn.Module, size: tuple[int, int]) -> nn.Module:
    """A copy of a model for images of any size that takes one: timm's ViTs in it resample their positions now.

    They would resample them for every image, with an antialiasing that not every exporter knows.

    Args:
        model: A detector or a segmenter.
        size: Height and width of the images as the backbone sees them.
    """
    new = copy.deepcopy(model)
    for body in resampling(new):
        patches: Any = body.patch_embed
        plane = [side // patch for side, patch in zip(size, patches.patch_size)]
        prefix = 0 if body.no_embed_class else body.num_prefix_tokens
        positions = resample_abs_pos_embed(body.pos_embed.data, plane, list(patches.grid_size), prefix)  # type: ignore[union-attr]
        body.pos_embed = nn.Parameter(positions)
        body.dynamic_img_size, patches.flatten, patches.output_fmt = False, True, Format.NCHW
    return new


def attention_in_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention as products of stacks of matrices; NotImplemented for what no exported model asks for.

    >>> x = torch.randn(2, 3, 5, 4)
    >>> whole = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    >>> (attention_in_steps(x, x, x) - whole).abs().max() < 1e-5
    tensor(True)
    """
    by_choice = attn_mask is not None and attn_mask.dtype == torch.bool
    if dropout_p or is_causal or enable_gqa or by_choice:
        return NotImplemented
    scaled = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    logits = _product(scaled, k.transpose(-2, -1))  # (…, N, M)
    if attn_mask is not None:
        logits = logits + attn_mask
    return _product(logits.softmax(-1), v)  # (…, N, D)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b by `bmm`: a matmul of more than three dimensions would be exported with copies that widen nothing."""
    stacked = a.reshape(-1, *a.shape[-2:]).bmm(b.reshape(-1, *b.shape[-2:]))
    return stacked.reshape(*a.shape[:-1], b.shape[-1])


def split_in_slices(x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    """What torch.split gives for a list of sizes, each part cut out by itself.

    >>> [part.tolist() for part in split_in_slices(torch.arange(5), [2, 3])]
    [[0, 1], [2, 3, 4]]
    """
    return [x.narrow(dim, start, size) for start, size in zip(accumulate(sizes, initial=0), sizes)]


def _equal_slices(x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    whole, rest = divmod(x.shape[dim], size)
    return split_in_slices(x, [size] * whole + [rest] * (rest > 0), dim)


def _chunks(x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    return _equal_slices(x, -(-x.shape[dim] // chunks), dim)


STEPS: dict[Any, Any] = {
    torch.ops.aten.scaled_dot_product_attention.default: attention_in_steps,
    torch.ops.aten.split_with_sizes.default: split_in_slices,
    torch.ops.aten.split.Tensor: _equal_slices,
    torch.ops.aten.chunk.default: _chunks,
}
"""Operator → the same in steps."""


def in_steps(program: ExportedProgram) -> ExportedProgram:
    """The program with attention and splits in steps.

    >>> import leanformer as lf
    >>> from leanformer.export.source import trace
    >>> tiny = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2).eval()
    >>> "scaled_dot" in str(in_steps(trace(tiny, (3, 32, 32))).graph)
    False
    """
    return program.run_decompositions(dict(STEPS))
