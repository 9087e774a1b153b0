"""Static token slimming: the same aggregation for every image, to compare the dynamic one with.

    pool   3 x 3 average pooling, stride 2 x 2          conv   3 x 3 convolution, stride 2 x 2
    mlp    X̂ = W₂ gelu(W₁ X) along the token axis, W₁: (4N, N), W₂: (N̂, 4N)

B batch, N tokens in, N̂ out, C channels, H x W the plane before any slimming. Prefix tokens pass by.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core import Grid
from ...layers.start import init_linear
from .slimming import Size, arrangement, pooling_prior, start_as


def halved(size: Size, times: int) -> Size:
    """An H x W plane after `times` halvings of its sides, each rounded up.

    >>> halved((14, 14), 3)
    (2, 2)
    """
    for _ in range(times):
        size = ((size[0] + 1) // 2, (size[1] + 1) // 2)
    return size


class PlaneSlimming(nn.Module):
    """Slimming by a map from plane to plane that halves both sides; `before` such slimmings ran earlier.

    `size` is the plane before any slimming at the model's own image size; at others, `grid` tells it.

    >>> PlaneSlimming(nn.AvgPool2d(3, 2, 1), Grid(1, (4, 4)), (4, 4), before=0)(torch.zeros(2, 17, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, fn: nn.Module, grid: Grid, size: Size, before: int):
        super().__init__()
        self.needs_grid: bool | str = _named(size, before)
        self.leaves_grid: bool | str = _named(size, before + 1)
        self.fn = fn
        self.decision = nn.Identity()
        self.grid = grid
        self.before = before

    def forward(self, x: Tensor) -> Tensor:
        prefix = self.grid.prefix
        plane = x[:, prefix:].transpose(1, 2).unflatten(2, self._plane(x.shape[1] - prefix))  # (B, C, H, W)
        tokens = self.decision(self.fn(plane)).flatten(2).transpose(1, 2)  # (B, N̂, C)
        return torch.cat([x[:, :prefix], tokens], dim=1)

    def provenance(self, decided: Tensor, tokens: int) -> Tensor:
        """Each new token stands for the cell of the plane that it lies over, (B, N̂, N)."""
        before = self._plane(tokens)
        after = halved(before, 1)
        cells = torch.arange(after[0] * after[1], device=decided.device).view(1, 1, *after).float()
        owner = F.interpolate(cells, size=before, mode="nearest").flatten().long()  # (N,)
        rows = F.one_hot(owner, after[0] * after[1]).T.float()  # (N̂, N)
        return (rows / rows.sum(1, keepdim=True)).expand(len(decided), -1, -1)

    def _plane(self, tokens: int) -> Size:
        """The plane that so many tokens fill behind the slimmings before this one."""
        return self.grid.plane(tokens, partial(halved, times=self.before))


def _named(size: Size, times: int) -> bool | str:
    height, width = halved(size, times)
    return arrangement(height * width) if times else True


def pooling() -> nn.Module:
    """3 x 3 average pooling of stride 2; windows at the border average what they have."""
    return nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)


def convolution(dim: int, start: str) -> nn.Module:
    """A 3 x 3 convolution of stride 2; with start "grid" it begins as average pooling.

    >>> convolution(8, "grid")(torch.ones(1, 8, 5, 5))[0, 0, 1, 1] > 0.99
    tensor(True)
    """
    conv = nn.Conv2d(dim, dim, 3, stride=2, padding=1)
    if start == "grid":
        nn.init.dirac_(conv.weight)
        with torch.no_grad():
            conv.weight.copy_(conv.weight.sum((2, 3), keepdim=True) / 9)
        nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    return conv


class TokenMlpSlimming(nn.Module):
    """Two linears along the token axis with a GELU between.

    With a `size`, it begins as soft pooling of that plane, exactly.

    >>> TokenMlpSlimming(16, 4, prefix=1)(torch.zeros(2, 17, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, inputs: int, tokens: int, prefix: int, size: Size | None = None, first: bool = True):
        super().__init__()
        self.prefix = prefix
        self.needs_grid: bool | str = first or arrangement(inputs)
        self.leaves_grid: bool | str = arrangement(tokens)
        self.fc1 = nn.Linear(inputs, 4 * inputs)
        self.fc2 = nn.Linear(4 * inputs, tokens)
        self.apply(init_linear)
        if size is not None:
            start_as(pooling_prior(inputs, tokens, size).softmax(1), self.fc1, self.fc2)

    def forward(self, x: Tensor) -> Tensor:
        inputs, found = self.fc1.in_features, x.shape[1] - self.prefix
        if found != inputs:
            raise ValueError(f"this slimming has weights for {inputs} patch tokens and found {found}")
        hidden = F.gelu(self.fc1(x[:, self.prefix :].transpose(1, 2)))  # (B, C, 4N)
        return torch.cat([x[:, : self.prefix], self.fc2(hidden).transpose(1, 2)], dim=1)  # (B, prefix+N̂, C)
