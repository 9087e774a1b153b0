"""Token slimming: N tokens become N̂ mixtures of themselves, with weights that depend on the image.

    A = softmax(scale · W₂ gelu(W₁ norm(X)) + prior),    X̂ = A X        A: (N̂, N), rows that sum to one

The prior is a learnable bias that starts as soft pooling onto a coarser layout of the plane; without it the rows of A
start out nearly uniform, and every new token is the mean of the old ones.

B batch, N tokens in, N̂ (`tokens`) out, C channels, H x W the plane of patches. Prefix tokens pass by.
"""

import copy
import itertools
import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core import Grid
from ...layers.start import init_linear

Axis = Literal["inputs", "outputs"]
Size = tuple[int, int]
NORM_EPS = 1e-5
SPREAD = 0.25


def slim(x: Tensor, weights: Tensor, prefix: int) -> Tensor:
    """Replace the patches behind the prefix tokens of x by their mixtures: (B, prefix+N, C) → (B, prefix+N̂, C).

    >>> slim(torch.ones(2, 5, 8), torch.full((2, 2, 4), 0.25), prefix=1).shape
    torch.Size([2, 3, 8])
    """
    return torch.cat([x[:, :prefix], weights @ x[:, prefix:]], dim=1)


def lay_out(tokens: int, size: Size) -> Tensor:
    """Centres of `tokens` tokens spread evenly over an H x W plane, row by row: (tokens, 2), in patches.

    H·W tokens are the patches themselves; other counts fill rows that differ by one token at most.

    >>> lay_out(2, (4, 4)).tolist()
    [[2.0, 1.0], [2.0, 3.0]]
    """
    height, width = size
    rows = min(tokens, max(1, round(math.sqrt(tokens * height / width))))
    bounds = [row * tokens // rows for row in range(rows + 1)]
    centres = [
        ((row + 0.5) * height / rows, (column + 0.5) * width / (stop - start))
        for row, (start, stop) in enumerate(itertools.pairwise(bounds))
        for column in range(stop - start)
    ]
    return torch.tensor(centres)


def pooling_prior(tokens_in: int, tokens_out: int, size: Size, spread: float = SPREAD) -> Tensor:
    """Logits (N̂, N) whose softmax pools tokens with a Gaussian around each new centre, `spread` pitches wide.

    >>> pooling_prior(16, 4, (4, 4)).softmax(1)[0].reshape(4, 4)[0, 0] > 0.2
    tensor(True)
    """
    pitch = math.sqrt(size[0] * size[1] / tokens_out)
    apart = lay_out(tokens_out, size)[:, None] - lay_out(tokens_in, size)[None]  # (N̂, N, 2)
    return -apart.square().sum(-1) / (2 * (spread * pitch) ** 2)


def resample(prior: Tensor, old: Size, new: Size) -> Tensor:
    """A prior for an old plane of patches, read off at the patches of a new one: (N̂, H·W) → (N̂, H'·W').

    >>> resample(torch.zeros(3, 16), (4, 4), (6, 5)).shape
    torch.Size([3, 30])
    """
    planes = prior.unflatten(1, old)[None]  # (1, N̂, H, W)
    return F.interpolate(planes, size=new, mode="bilinear", align_corners=False)[0].flatten(1)


@torch.no_grad()
def start_as(matrix: Tensor, fc1: nn.Linear, fc2: nn.Linear) -> None:
    """Let two linears with a GELU between them begin as a matrix, exactly: gelu(x) - gelu(-x) = x.

    That takes two hidden units for each input, of opposite sign; further ones begin unheard.

    >>> fc1, fc2 = nn.Linear(3, 8), nn.Linear(8, 2)
    >>> start_as(torch.ones(2, 3), fc1, fc2)
    >>> fc2(F.gelu(fc1(torch.tensor([1.0, 2.0, -4.0])))).round().tolist()
    [-1.0, -1.0]
    """
    inputs = matrix.shape[1]
    one = torch.eye(inputs)
    fc1.weight[: 2 * inputs] = torch.cat([one, -one])
    fc2.weight[:, : 2 * inputs] = torch.cat([matrix, -matrix], dim=1)
    fc2.weight[:, 2 * inputs :] = 0.0
    fc1.bias.zero_()
    fc2.bias.zero_()


def arrangement(tokens: int) -> str:
    """The name by which one slimming's tokens, spread over the plane, are known to the next."""
    return f"{tokens} tokens"


class SpatialPrior(nn.Module):
    """The learnable bias (N̂, N) on the slimming logits; with a `grid`, its N inputs are that grid's own patches.

    The plane may then change its size with the images: the bias is resampled.

    >>> SpatialPrior(16, 4, (4, 4))(tokens=16).shape
    torch.Size([4, 16])
    """

    def __init__(self, inputs: int, tokens: int, size: Size, grid: Grid | None = None):
        super().__init__()
        self.bias = nn.Parameter(pooling_prior(inputs, tokens, size))
        self.size = size
        self.grid = grid

    def forward(self, tokens: int) -> Tensor:
        bias = self.bias
        plane = self.grid.plane(tokens) if self.grid is not None else self.size
        if plane != self.size:
            bias = resample(bias, self.size, plane)
        if bias.shape[1] != tokens:
            raise ValueError(
                f"this slimming with a spatial prior expects {bias.shape[1]} patch tokens and found {tokens}; "
                "slim before what else drops tokens, or use start='random'"
            )
        return bias


class Slimming(nn.Module):
    """What trained and fused slimming share: softmax of the logits over an axis, then the mixtures.

    With `axis="inputs"` each new token is a weighted mean of the old ones, as in the released models. With "outputs"
    each old token is shared out among the new ones, as the paper's Eq. 2 has it; the new tokens are then sums, N / N̂
    times as large.
    """

    norm: nn.LayerNorm
    fc1: nn.Linear
    fc2: nn.Linear

    def __init__(self, tokens: int, prefix: int, axis: Axis, prior: SpatialPrior | None):
        super().__init__()
        self.prefix = prefix
        self.axis: Axis = axis
        self.prior = prior
        self.decision = nn.Identity()
        self.leaves_grid: bool | str = arrangement(tokens) if prior is not None else True
        self.needs_grid: bool | str = False
        if prior is not None:
            self.needs_grid = True if prior.grid is not None else arrangement(prior.bias.shape[1])

    def logits(self, patches: Tensor) -> Tensor:
        """The content's part of the logits for patches (B, N, C): (B, N, N̂)."""
        return self.fc2(F.gelu(self.fc1(self.norm(patches))))

    def weights(self, x: Tensor) -> Tensor:
        """The slimming weights A of tokens x (B, prefix+N, C): (B, N̂, N)."""
        patches = x[:, self.prefix :]  # (B, N, C)
        logits = self.logits(patches).transpose(1, 2)  # (B, N̂, N)
        if self.prior is not None:
            logits = logits + self.prior(patches.shape[1])
        return logits.softmax(2 if self.axis == "inputs" else 1)

    def forward(self, x: Tensor) -> Tensor:
        return slim(x, self.decision(self.weights(x)), self.prefix)

    def provenance(self, decided: Tensor, tokens: int) -> Tensor:
        """The slimming weights themselves, (B, N̂, N)."""
        return decided

    def extra_repr(self) -> str:
        return f"prefix={self.prefix}, axis={self.axis}"


class TokenSlimming(Slimming):
    """The token slimming module (TSM): LayerNorm, C → C/2, GELU, C/2 → N̂, a learnable scale, softmax.

    >>> TokenSlimming(8, tokens=4, prefix=1)(torch.zeros(2, 17, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, dim: int, tokens: int, prefix: int, axis: Axis = "inputs", prior: SpatialPrior | None = None):
        super().__init__(tokens, prefix, axis, prior)
        self.norm = nn.LayerNorm(dim, eps=NORM_EPS)
        self.fc1 = nn.Linear(dim, dim // 2)
        self.fc2 = nn.Linear(dim // 2, tokens)
        self.scale = nn.Parameter(torch.ones(()))
        # softmax over the inputs does not feel what is one number for a new token
        self.dead_parameters = ("fc2.bias",) if axis == "inputs" else ()
        self.apply(init_linear)

    def logits(self, patches: Tensor) -> Tensor:
        return self.scale * super().logits(patches)

    def fused(self) -> "FusedSlimming":
        """The norm's affine goes into the first linear, the scale into the second; the prior takes up its bias."""
        return FusedSlimming(self)


class FusedSlimming(Slimming):
    """Token slimming for inference: a bare norm, two linears, and the prior where there is one."""

    @torch.no_grad()
    def __init__(self, tsm: TokenSlimming):
        prior = None
        if tsm.prior is not None:  # of its own, but on the same grid, which the backbone writes to
            prior = copy.deepcopy(tsm.prior, {id(tsm.prior.grid): tsm.prior.grid})
        super().__init__(tsm.fc2.out_features, tsm.prefix, tsm.axis, prior)
        self.norm = nn.LayerNorm(tsm.fc1.in_features, eps=tsm.norm.eps, elementwise_affine=False)
        shift = tsm.scale * tsm.fc2.bias if tsm.axis == "outputs" else None  # (N̂,)
        if shift is not None and prior is not None:
            prior.bias.add_(shift[:, None])
            shift = None
        self.fc1 = _linear(tsm.fc1.weight * tsm.norm.weight, tsm.fc1.bias + tsm.fc1.weight @ tsm.norm.bias)
        self.fc2 = _linear(tsm.scale * tsm.fc2.weight, shift)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight)
    layer.bias = nn.Parameter(bias) if bias is not None else None  # type: ignore[assignment]
    return layer
