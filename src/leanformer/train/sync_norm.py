"""Batch normalisation over the batches of all processes: what is learnt does not depend on how many there are.

    μ = Σ x / n,   σ² = Σ (x − μ)² / n          sums over the rows of all processes, and so are their gradients

Torch's own needs a GPU and channels on axis 1; this one runs wherever processes can add tensors up.
M rows of one process, C channels, n rows of all processes.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives
from torch.nn.modules.batchnorm import _BatchNorm

from ..layers.norms import BatchNormLast


class _Sum(torch.autograd.Function):
    """The sum over all processes; each one's loss depends on every part of it, so gradients are added up likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _total(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return _total(grad)


def _total(x: Tensor) -> Tensor:
    return collectives.wait_tensor(collectives.all_reduce(x.contiguous(), "sum", dist.group.WORLD))  # type: ignore[arg-type]


class SyncBatchNorm(_BatchNorm):
    """Stands for a batch norm, whose parameters and statistics it shares; with one process it computes the same bits.

    >>> SyncBatchNorm(nn.BatchNorm1d(8))(torch.randn(4, 8)).shape
    torch.Size([4, 8])
    """

    def __init__(self, plain: _BatchNorm):
        super().__init__(plain.num_features, plain.eps, plain.momentum, affine=False, track_running_stats=False)
        self.affine, self.track_running_stats = plain.affine, plain.track_running_stats
        self.axis = -1 if isinstance(plain, BatchNormLast) else 1
        self._parameters, self._buffers = plain._parameters, plain._buffers
        self.train(plain.training)

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        x = input.flatten(0, -2) if self.axis == -1 else input
        alone = not self.training or not dist.is_initialized() or dist.get_world_size() == 1
        return (super().forward(x) if alone else self._together(x)).view(input.shape)

    def _together(self, x: Tensor) -> Tensor:
        rows = x.transpose(0, 1).flatten(1).float()  # (C, M)
        count = rows.new_full((1,), rows.shape[1])
        sums = _Sum.apply(torch.cat([rows.sum(1), count]))  # (C + 1,)
        n = sums[-1].detach()
        centred = rows - (sums[:-1] / n)[:, None]  # (C, M)
        variance = _Sum.apply(centred.square().sum(1)) / n  # (C,)
        if self.running_mean is not None and self.running_var is not None:
            self._remember((sums[:-1] / n).detach(), (variance * n / (n - 1)).detach())
        y = centred * torch.rsqrt(variance + self.eps)[:, None]
        if self.affine:
            y = y * self.weight[:, None] + self.bias[:, None]
        return y.to(x.dtype).view(x.shape[1], len(x), *x.shape[2:]).transpose(0, 1).contiguous()

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of this batch."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        step = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        for running, seen in ((self.running_mean, mean), (self.running_var, variance)):
            running.lerp_(seen.to(running.dtype), step)  # type: ignore[union-attr]


def synchronise(model: nn.Module) -> dict[str, _BatchNorm]:
    """Let all batch norms of a model, in place, take their statistics over all processes; returns the plain ones.

    >>> sorted(synchronise(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))))
    ['1']
    """
    plain = {path: module for path, module in model.named_modules() if isinstance(module, _BatchNorm)}
    for path, module in plain.items():
        model.set_submodule(path, SyncBatchNorm(module))
    return plain
