"""Token mixers: what MetaFormer puts into the place of attention, each over any layout of tokens.

    pooling        mean of the k x k window - x            identity       x
    random         softmax(R) X, R frozen noise            attention      softmax(Q K^T / sqrt(d)) V
    spatial_fc     W X                                     spatial_mlp    W2 gelu(W1 X)
    depthwise      k x k filter for each channel           separable      1x1, activation, k x k depthwise, 1x1
    global_filter  F^-1(K * F(X)), F the 2-D Fourier transform

A prefix token (a class token) has no place on the plane. Mixers over tokens treat it as one of them. Mixers over the
plane leave the patches to themselves and hand it the mean of the mixed patches, so that a classifier which reads
that token still sees the image; pooling, whose window is then the whole plane, gives it mean(patches) - itself.

B batch, N tokens, P prefix tokens, H x W the plane, C channels, k the window.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from timm.layers import Attention, Mlp
from torch import Tensor, nn

from .activations import activation
from .layout import Plane, from_plane, from_tokens, to_plane, to_tokens


class Mixer(nn.Module):
    """Base of all mixers: where the tokens lie, and whether the mixer needs every patch in its place."""

    needs_grid = True

    def __init__(self, layout: str = "NLC", grid: Plane | None = None):
        super().__init__()
        self.layout = layout
        self.grid = grid


class PlaneMixer(Mixer):
    """A mixer over the plane: `mix` takes and gives (B, C, H, W)."""

    def mix(self, plane: Tensor) -> Tensor:
        raise NotImplementedError

    def mix_prefix(self, prefix: Tensor, plane: Tensor, mixed: Tensor) -> Tensor:
        """What prefix tokens (B, P, C) get, of the plane before and after mixing."""
        return mixed.mean(dim=(2, 3))[:, None].expand_as(prefix)  # (B, P, C)

    def forward(self, x: Tensor) -> Tensor:
        plane, prefix = to_plane(x, self.layout, self.grid)
        mixed = self.mix(plane)
        if prefix is not None:
            prefix = self.mix_prefix(prefix, plane, mixed)
        return from_plane(mixed, prefix, self.layout)


class Pooling(PlaneMixer):
    """The mean of the k x k window around each patch, minus the patch; windows at the edge are means of what is there.

    >>> Pooling(3, layout="NCHW")(torch.ones(1, 8, 2, 2)).abs().max()
    tensor(0.)
    """

    def __init__(self, pool_size: int = 3, layout: str = "NLC", grid: Plane | None = None):
        super().__init__(layout, grid)
        check_odd("pool_size", pool_size)
        self.pool = nn.AvgPool2d(pool_size, stride=1, padding=pool_size // 2, count_include_pad=False)

    def mix(self, plane: Tensor) -> Tensor:
        return self.pool(plane) - plane

    def mix_prefix(self, prefix: Tensor, plane: Tensor, mixed: Tensor) -> Tensor:
        return plane.mean(dim=(2, 3))[:, None] - prefix  # (B, P, C)


class Identity(PlaneMixer):
    """No mixing: the branch adds the normalised input."""

    needs_grid = False

    def forward(self, x: Tensor) -> Tensor:
        prefix = self.grid.prefix if self.layout == "NLC" and self.grid is not None else 0
        if not prefix:
            return x
        patches = x[:, prefix:]
        return torch.cat([patches.mean(1, keepdim=True).expand(-1, prefix, -1), patches], dim=1)


class Depthwise(PlaneMixer):
    """One k x k filter for each channel."""

    def __init__(self, dim: int, kernel_size: int = 3, layout: str = "NLC", grid: Plane | None = None):
        super().__init__(layout, grid)
        check_odd("kernel_size", kernel_size)
        self.conv = nn.Conv2d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)

    def mix(self, plane: Tensor) -> Tensor:
        return self.conv(plane)


class Separable(PlaneMixer):
    """The inverted separable convolution of ConvFormer: expand, activate, filter each channel, project."""

    def __init__(
        self,
        dim: int,
        kernel_size: int = 7,
        expansion: float = 2,
        act: str = "star_relu",
        layout: str = "NLC",
        grid: Plane | None = None,
    ):
        super().__init__(layout, grid)
        check_odd("kernel_size", kernel_size)
        hidden = int(expansion * dim)
        self.pwconv1 = nn.Linear(dim, hidden, bias=False)
        self.act1 = activation(act)()
        self.dwconv = nn.Conv2d(hidden, hidden, kernel_size, padding=kernel_size // 2, groups=hidden, bias=False)
        self.pwconv2 = nn.Linear(hidden, dim, bias=False)

    def mix(self, plane: Tensor) -> Tensor:
        x = self.act1(self.pwconv1(plane.permute(0, 2, 3, 1)))  # (B, H, W, hidden)
        x = self.dwconv(x.permute(0, 3, 1, 2))  # (B, hidden, H, W)
        return self.pwconv2(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # (B, C, H, W)


class GlobalFilter(PlaneMixer):
    """A learned filter as large as the plane, applied in the frequency domain: (H, W/2 + 1, C) complex numbers.

    With `any_size` the filter is resampled for a plane of another size than that it was built for.
    The transform runs in float32 whatever the model's dtype, because half precision has none for most sizes.
    """

    def __init__(self, dim: int, size: tuple[int, int], layout: str = "NLC", grid: Plane | None = None):
        super().__init__(layout, grid)
        self.size = tuple(size)
        self.any_size = False
        self.complex_weight = nn.Parameter(torch.randn(size[0], size[1] // 2 + 1, dim, 2) * 0.02)

    def mix(self, plane: Tensor) -> Tensor:
        size, filters = (plane.shape[2], plane.shape[3]), self.complex_weight
        if not self.any_size:
            _same_size("global filter", size, self.size)
        elif size != self.size:
            filters = resample_filter(filters, size)
        exact = plane.dtype if plane.dtype == torch.float64 else torch.float32
        # autocast lowers none of these operators, so it needs no guard (which the meta device could not take)
        spectrum = torch.fft.rfft2(plane.to(exact), norm="ortho")  # (B, C, H, W/2 + 1)
        weight = torch.view_as_complex(filters.to(exact)).permute(2, 0, 1)
        return torch.fft.irfft2(spectrum * weight, s=size, norm="ortho").to(plane.dtype)


def resample_filter(weight: Tensor, size: tuple[int, int]) -> Tensor:
    """A global filter (H, W/2 + 1, C, 2) for a plane of another size: its frequencies interpolated, as GFNet does.

    >>> resample_filter(torch.zeros(14, 8, 4, 2), (24, 20)).shape
    torch.Size([24, 11, 4, 2])
    """
    maps = weight.flatten(2).permute(2, 0, 1)[None]  # (1, 2C, H, W/2 + 1)
    wanted = (size[0], size[1] // 2 + 1)
    maps = F.interpolate(maps, wanted, mode="bicubic", align_corners=True)
    return maps[0].permute(1, 2, 0).unflatten(2, weight.shape[2:]).contiguous()


class FixedTokens(Mixer):
    """A mixer whose weights count the tokens: N = P + H*W is fixed when the model is built."""

    def __init__(self, size: tuple[int, int], layout: str = "NLC", grid: Plane | None = None):
        super().__init__(layout, grid)
        self.size = tuple(size)
        self.tokens = (grid.prefix if grid is not None else 0) + size[0] * size[1]

    def mix(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if self.layout != "NLC":
            size = tuple(x.shape[2:] if self.layout == "NCHW" else x.shape[1:3])
            _same_size(type(self).__name__, size, self.size)
        tokens = to_tokens(x, self.layout)  # (B, N, C)
        if tokens.shape[1] != self.tokens:
            raise ValueError(
                f"{type(self).__name__} was built for {self.tokens} tokens and {tokens.shape[1]} came; "
                "build the model with the img_size it will see"
            )
        return from_tokens(self.mix(tokens), self.layout, like=x)


class RandomMixing(FixedTokens):
    """Frozen random weights: each row of softmax(R) says what one token takes from all tokens."""

    def __init__(self, size: tuple[int, int], layout: str = "NLC", grid: Plane | None = None):
        super().__init__(size, layout, grid)
        noise = torch.rand(self.tokens, self.tokens)
        self.random_matrix = nn.Parameter(noise.softmax(dim=-1), requires_grad=False)

    def mix(self, tokens: Tensor) -> Tensor:
        return self.random_matrix @ tokens


class SpatialFc(FixedTokens):
    """One learned matrix over the tokens, the same for every channel."""

    def __init__(self, size: tuple[int, int], layout: str = "NLC", grid: Plane | None = None):
        super().__init__(size, layout, grid)
        self.fc = nn.Linear(self.tokens, self.tokens, bias=False)

    def mix(self, tokens: Tensor) -> Tensor:
        return self.fc(tokens.transpose(1, 2)).transpose(1, 2)


class SpatialMlp(FixedTokens):
    """An MLP over the tokens, the same for every channel, as in MLP-Mixer."""

    def __init__(
        self, size: tuple[int, int], expansion: float = 2, act: str = "gelu", layout="NLC", grid: Plane | None = None
    ):
        super().__init__(size, layout, grid)
        self.mlp = Mlp(self.tokens, int(expansion * self.tokens), act_layer=activation(act))

    def mix(self, tokens: Tensor) -> Tensor:
        return self.mlp(tokens.transpose(1, 2)).transpose(1, 2)


class SelfAttention(Attention):
    """timm's attention over any layout, with heads of a fixed width."""

    needs_grid = False

    def __init__(
        self, dim: int, head_dim: int = 32, qkv_bias: bool = False, proj_bias: bool = False, layout: str = "NLC"
    ):
        super().__init__(
            dim, num_heads=max(1, dim // head_dim), attn_head_dim=head_dim, qkv_bias=qkv_bias, proj_bias=proj_bias
        )
        self.layout = layout

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        tokens = to_tokens(x, self.layout)
        return from_tokens(super().forward(tokens, attn_mask, is_causal), self.layout, like=x)


MixerName = Literal[
    "pooling", "identity", "random", "depthwise", "separable", "attention", "spatial_fc", "spatial_mlp", "global_filter"
]
MIXERS: tuple[str, ...] = get_args(MixerName)
FIXED_SIZE = ("random", "spatial_fc", "spatial_mlp", "global_filter")
"""Mixers whose weights depend on the size of the plane."""


def make_mixer(
    name: str,
    dim: int,
    *,
    layout: str = "NLC",
    grid: Plane | None = None,
    size: tuple[int, int] | None = None,
    pool_size: int = 3,
    kernel_size: int | None = None,
    expansion: float = 2,
    head_dim: int = 32,
    qkv_bias: bool = False,
    proj_bias: bool = False,
    act: str | None = None,
) -> nn.Module:
    """The mixer called `name`; `size` is the plane (H, W), for those that fix it.

    >>> make_mixer("pooling", 64, layout="NCHW", pool_size=5).pool.kernel_size
    5
    """
    if name not in MIXERS:
        raise ValueError(f"unknown token mixer '{name}'; known: {', '.join(MIXERS)}")
    if name in FIXED_SIZE:
        assert size is not None, f"{name} needs the size of the plane"
        place = {"size": size, "layout": layout, "grid": grid}
        if name == "random":
            return RandomMixing(**place)
        if name == "spatial_fc":
            return SpatialFc(**place)
        if name == "spatial_mlp":
            return SpatialMlp(expansion=expansion, act=act or "gelu", **place)
        return GlobalFilter(dim, **place)
    if name == "attention":
        return SelfAttention(dim, head_dim, qkv_bias, proj_bias, layout)
    if name == "pooling":
        return Pooling(pool_size, layout, grid)
    if name == "identity":
        return Identity(layout, grid)
    if name == "depthwise":
        return Depthwise(dim, kernel_size or 3, layout, grid)
    return Separable(dim, kernel_size or 7, expansion, act or "star_relu", layout, grid)


def check_odd(what: str, size: int) -> None:
    """Refuse a window without a centre."""
    if size < 1 or size % 2 == 0:
        raise ValueError(f"{what} must be a positive odd number, so that the window has a centre; it is {size}")


def _same_size(what: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise ValueError(
            f"{what} was built for a plane of {wanted[0]} x {wanted[1]} patches and {found[0]} x {found[1]} came; "
            "build the model with the img_size it will see"
        )
