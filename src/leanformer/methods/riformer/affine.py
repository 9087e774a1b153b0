"""The affine token mixer and how it disappears into the norm before it.

    Affine(z) = s·z + t − z                                              Eq. 1, z = norm(x)
    Affine(γ·ẑ + β) = γ'·ẑ + β'  with  γ' = γ(s − 1),  β' = β(s − 1) + t     Eq. 4, ẑ the normalised x

Equation numbers are those of the RIFormer paper. C channels; s, t, γ, β are vectors of C.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from timm.models.mlp_mixer import Affine as ChannelAffine
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...core import Branch, Layout
from ...layers.layout import to_tokens
from ...layers.norms import PlaneNorm

Start = Literal["fit", "paper", "uniform"]
ABSORBING = (nn.LayerNorm, nn.GroupNorm, _BatchNorm, PlaneNorm, ChannelAffine)


def affine(z: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """Eq. 1 in one multiplication; s and t broadcast against z.

    >>> affine(torch.ones(1, 2), torch.tensor([1.0, 3.0]), torch.tensor([0.5, 0.0]))
    tensor([[0.5000, 2.0000]])
    """
    return (s - 1) * z + t


def on_channels(vector: Tensor, layout: Layout) -> Tensor:
    """A vector of C in a shape that broadcasts against a tensor of that layout.

    >>> on_channels(torch.zeros(8), "NCHW").shape, on_channels(torch.zeros(8), "NLC").shape
    (torch.Size([8, 1, 1]), torch.Size([8]))
    """
    return vector[:, None, None] if layout == "NCHW" else vector


class Affine(nn.Module):
    """The token mixer of RIFormer in training: s and t per channel, at first the branch that adds nothing.

    >>> Affine(8)(torch.randn(2, 5, 8)).abs().max()
    tensor(0., grad_fn=<MaxBackward1>)
    """

    def __init__(self, dim: int, layout: Layout = "NLC"):
        super().__init__()
        self.layout: Layout = layout
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, z: Tensor) -> Tensor:
        return affine(z, on_channels(self.weight, self.layout), on_channels(self.bias, self.layout))

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, layout={self.layout}"


def absorbs(norm: nn.Module) -> bool:
    """Whether `absorb` knows this norm: its last step is a product and, possibly, a sum per channel.

    >>> absorbs(nn.LayerNorm(8)), absorbs(nn.GroupNorm(1, 8)), absorbs(nn.RMSNorm(8))
    (True, True, False)
    """
    return isinstance(norm, ABSORBING)


def absorb(norm: nn.Module, scale: Tensor, shift: Tensor | None) -> nn.Module:
    """A new norm that computes `scale · norm(x) + shift`; with a shift it has a bias, even where the old one had none.

    >>> z = torch.randn(3, 8)
    >>> torch.equal(absorb(nn.LayerNorm(8), 2 * torch.ones(8), torch.ones(8))(z), 2 * nn.LayerNorm(8)(z) + 1)
    True
    """
    new = copy.deepcopy(norm)
    gamma, beta = ("alpha", "beta") if isinstance(norm, ChannelAffine) else ("weight", "bias")
    old_gamma, old_beta = getattr(norm, gamma), getattr(norm, beta)
    new_gamma = scale if old_gamma is None else (old_gamma.flatten() * scale).view_as(old_gamma)
    new_beta = shift
    if old_beta is not None:
        new_beta = (old_beta.flatten() * scale + (0 if shift is None else shift)).view_as(old_beta)
    setattr(new, gamma, nn.Parameter(new_gamma.detach().clone()))
    setattr(new, beta, None if new_beta is None else nn.Parameter(new_beta.detach().clone()))
    return new


class NormResidual(nn.Module):
    """What is left of a token-mixing branch without token mixer: `skip(x) + norm(x)`.

    >>> NormResidual(nn.LayerNorm(8))(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, norm: nn.Module, skip: nn.Module | None = None):
        super().__init__()
        self.norm = norm
        self.skip = skip or nn.Identity()

    def forward(self, x: Tensor, **mask: object) -> Tensor:
        return self.skip(x) + self.norm(x)


class MixerFree(Branch):
    """A token-mixing branch that mixes nothing: an affine or, for the plainest variant, the identity as its mixer."""

    def __init__(self, *, layout: Layout, dim: int, **parts: Any):
        super().__init__(**parts)
        self.layout: Layout = layout
        self.dim = dim

    def residual(self, x: Tensor, **mask: Any) -> Tensor:
        """What the branch adds; without mixing, no mask of the attention matters."""
        return super().residual(x)

    def gain(self, like: Tensor) -> Tensor:
        """The branch's scale (LayerScale or a constant) as a vector of C."""
        ones = on_channels(like.new_ones(self.dim), self.layout)
        return self.scale(ones).flatten()

    @torch.no_grad()
    def fused(self) -> NormResidual:
        """Eq. 4, with the branch's scale folded in as well."""
        gain, shift = self.gain(next(self.parameters())), None
        if isinstance(self.fn, Affine):
            gain, shift = gain * (self.fn.weight - 1), gain * self.fn.bias
        return NormResidual(absorb(self.norm, gain, shift), copy.deepcopy(self.skip))


class AffineBranch(MixerFree):
    """The branch of training: `skip(x) + scale·(s·z + t − z)`, which can start where the teacher's mixer is."""

    fn: Affine

    def __init__(self, *, start: Start, **parts: Any):
        super().__init__(**parts)
        self.start = start
        _start(self.fn, start)

    @torch.no_grad()
    def fit(self, x: Tensor, teacher_x: Tensor, teacher_y: Tensor, teacher: nn.Module | None = None) -> None:
        """s and t by least squares, per channel: what is still missing from x to the teacher's output, from norm(x).

        Through the scale: scale·((s − 1)·z + t) ≈ teacher_y − skip(x).
        """
        if self.start != "fit":
            return
        gain = self.gain(x).double()
        slope, offset = _regress(self._pairs(x, teacher_y), self.dim)
        alive = gain != 0
        inverse = torch.where(alive, 1 / torch.where(alive, gain, 1), 0)
        self.fn.weight.copy_(1 + slope * inverse)
        self.fn.bias.copy_(offset * inverse)

    def _pairs(self, x: Tensor, teacher_y: Tensor, batch: int = 32) -> Iterator[tuple[Tensor, Tensor]]:
        """(z, target) as rows of channels in float64, a few images at a time."""
        for part, goal in zip(x.split(batch), teacher_y.split(batch), strict=True):
            target = goal - self.skip(part)
            z, target = (to_tokens(v, self.layout).flatten(0, 1).double() for v in (self.norm(part), target))
            yield z, target  # (rows, C)


def _regress(pairs: Iterable[tuple[Tensor, Tensor]], dim: int) -> tuple[Tensor, Tensor]:
    """Slope and offset of the least-squares line target ≈ slope·z + offset, for each channel."""
    n, sums = 0, torch.zeros(4, dim, dtype=torch.float64)
    for z, target in pairs:  # (rows, C)
        n += z.shape[0]
        sums = sums.to(z.device) + torch.stack([z.sum(0), target.sum(0), (z * z).sum(0), (z * target).sum(0)])
    mean_z, mean_target, mean_zz, mean_zt = sums / n
    variance = mean_zz - mean_z**2
    known = variance > 1e-12 * mean_zz.clamp(min=1e-12)
    slope = torch.where(known, (mean_zt - mean_z * mean_target) / torch.where(known, variance, 1), 0)
    return slope, mean_target - slope * mean_z


def _start(fn: Affine, start: Start) -> None:
    if start == "paper":
        nn.init.trunc_normal_(fn.weight, std=0.02)
        nn.init.zeros_(fn.bias)
    if start == "uniform":
        nn.init.uniform_(fn.weight, -1, 1)
        nn.init.uniform_(fn.bias, -1, 1)
