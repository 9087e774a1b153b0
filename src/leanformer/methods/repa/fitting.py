"""Least squares for a trained FFN that is to run with idle channels: no gradient of a network is needed.

    y ≈ W_out act(W_in x + b_in) + W x + b        x: what the layer sees, y: what the teacher answers there

Given W_in, the best (W_out, W, b) is one ridge regression. W_in itself comes from the teacher's hidden units: those
that together say most of what a linear map of x leaves unsaid, each as the best linear map from x to its
pre-activation, and a few hundred Adam steps on this layer alone if wanted.

M rows (tokens of all images), C channels, R hidden channels, A active ones.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from .idle import Affine, ThreeLinears

Map = Callable[[Tensor], Tensor]
CHUNK = 16384
BATCH = 4096
PENALTY = 1e-4
PREFIX_SHARE = 0.25
ROWS_TO_CHOOSE = 16384
"""So many rows are enough to choose units by."""


def rows(x: Tensor, axis: int) -> Tensor:
    """All positions of a tensor as rows of channels, (M, C).

    >>> rows(torch.zeros(2, 8, 3, 3), axis=1).shape, rows(torch.zeros(2, 5, 8), axis=-1).shape
    (torch.Size([18, 8]), torch.Size([10, 8]))
    """
    return x.movedim(axis, -1).reshape(-1, x.shape[axis])


def token_weights(y: Tensor, axis: int, prefix: int = 0) -> Tensor:
    """One weight a row, 1 / variance over its channels, of mean 1: the norm behind divides by that variance.

    Deep blocks carry a few tokens with values in the hundreds, which would otherwise decide the whole fit. The
    `prefix` tokens of a sequence (n, N, C), which the head reads, weigh together a share of what all patches weigh.

    >>> token_weights(torch.tensor([[[1.0, -1.0], [2.0, -2.0]]]), axis=-1)
    tensor([1.6000, 0.4000])
    """
    variance = y.var(dim=axis, unbiased=False)  # (n, N) or (n, H, W)
    weight = 1 / variance.clamp_min(1e-6 * variance.mean())
    if prefix:
        weight[:, :prefix] *= PREFIX_SHARE * weight[:, prefix:].sum() / weight[:, :prefix].sum()
    return (weight / weight.mean()).flatten()


class Moments:
    """Weighted second moments of features and targets, summed in float64 over chunks of rows."""

    def __init__(self) -> None:
        self.gram: Tensor | float = 0.0  # (F, F)
        self.cross: Tensor | float = 0.0  # (F, T)

    def add(self, features: Tensor, target: Tensor, weight: Tensor) -> None:
        features, target, weight = features.double(), target.double(), weight.double()
        weighted = features * weight[:, None]
        self.gram = self.gram + weighted.mT @ features
        self.cross = self.cross + weighted.mT @ target

    def solve(self, penalty: float = PENALTY) -> Tensor:
        """The ridge solution (F, T). Each feature is penalised in its own unit; the last one, the constant, is not."""
        gram = torch.as_tensor(self.gram)
        ridge = penalty * gram.diagonal().clamp_min(1e-12 * gram.diagonal().max())
        ridge[-1] = 0
        return torch.linalg.solve(gram + torch.diag(ridge), torch.as_tensor(self.cross))


def with_one(x: Tensor) -> Tensor:
    """x with a constant feature at its end."""
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def hidden_units(seen: Iterable[tuple[Tensor, Tensor, Tensor]], act: Map, share: float = 1.0) -> tuple[Affine, Tensor]:
    """The best linear maps from x to the hidden units' pre-activations, and what linear maps miss of their activations.

    `seen` gives rows of x (m, C), the teacher's pre-activations there (m, R), and weights (m,). What is missed is told
    by its weighted second moments (R, R), from a random `share` of the rows.
    """
    moments, kept, size = Moments(), [], 0
    generator = torch.Generator().manual_seed(0)
    for x, h, weight in seen:
        size = h.shape[1]
        features, active = with_one(x), act(h)
        moments.add(features, torch.cat([h, active], dim=1), weight)
        pick = torch.randperm(len(x), generator=generator)[: math.ceil(share * len(x))].to(x.device)
        kept.append((features[pick], active[pick], weight[pick]))
    solution = moments.solve()  # (C + 1, 2 R)
    into = solution[:, :size].mT  # (R, C + 1)
    features, active, weight = (torch.cat(part) for part in zip(*kept, strict=True))
    left = (active - (features.double() @ solution[:, size:]).to(active)) * weight.sqrt()[:, None]
    return Affine(into[:, :-1], into[:, -1]), (left.mT @ left).double()


def choose_together(left: Tensor, out: Tensor, count: int, penalty: float = PENALTY) -> Tensor:
    """The `count` units from which all the others' part in the outputs follows best, found one by one.

    `left` (R, R) are second moments of the units, `out` (C, R) their weights in the outputs. Each step takes the unit
    that explains most of what is still missing, so that of two units that say the same only one is taken: forward
    selection, by a Cholesky factor that grows a column a step.

    >>> left = torch.tensor([[4.0, 4.0, 0.0], [4.0, 4.0, 0.0], [0.0, 0.0, 1.0]])  # the first two are the same
    >>> choose_together(left.double(), torch.eye(3).double(), 2)
    tensor([0, 2])
    """
    own = left.diagonal().clone()  # of each unit, what the chosen ones do not explain
    ridge = penalty * own.clamp_min(1e-12 * own.max())
    missing = left @ out.mT  # (R, C): how each unit goes along with what is missing
    factor = left.new_zeros(len(left), count)
    free = torch.ones_like(own, dtype=torch.bool)
    chosen = []
    for step in range(count):
        gain = missing.square().sum(1) / (own.clamp_min(0) + ridge)
        best = int(gain.where(free, -1).argmax())
        root = (own[best].clamp_min(0) + ridge[best]).sqrt()
        column = (left[:, best] - factor[:, :step] @ factor[best, :step]) / root
        missing -= torch.outer(column, missing[best] / root)
        own -= column.square()
        factor[:, step] = column
        free[best] = False
        chosen.append(best)
    return torch.tensor(chosen, device=left.device, dtype=torch.long)


def solve_linears(
    x: Tensor, into: Affine, act: Map, y: Tensor, weight: Tensor, within: Tensor | None = None
) -> ThreeLinears:
    """The best W_out, W and b for this W_in, by ridge regression on [act(W_in x + b_in) | x | 1].

    `within` (K, C) restricts W to the span of its rows.
    """
    basis = torch.eye(x.shape[1], device=x.device, dtype=torch.float64) if within is None else within
    moments = Moments()
    for part, goal, w in _chunks(x, y, weight):
        exact = part.double()
        active = act((exact @ into.weight.mT + into.bias).to(x.dtype))
        moments.add(with_one(torch.cat([active.double(), exact @ basis.mT], dim=1)), goal, w)
    solution = moments.solve().mT  # (C, A + K + 1)
    out, path, bias = solution.split([into.weight.shape[0], basis.shape[0], 1], dim=1)
    return ThreeLinears(into, out, Affine(path @ basis, bias[:, 0]))


def leading_rows(path: Tensor, x: Tensor, rank: int) -> Tensor:
    """Rows (rank, C) through which W x loses least on the rows of x."""
    centred = (x - x.mean(0)).double()
    values, vectors = torch.linalg.eigh(centred.mT @ centred / len(x))
    root = values.clamp_min(1e-9 * values.max()).sqrt()
    _, strength, right = torch.linalg.svd(path @ vectors * root)
    return strength[:rank, None] * right[:rank] / root @ vectors.mT


def refine(
    linears: ThreeLinears, x: Tensor, act: Map, y: Tensor, weight: Tensor, steps: int, rate: float = 5e-3
) -> Affine:
    """W_in after `steps` of Adam on all three linears, on random rows of many, in standardised channels of x."""
    mean, std = x.mean(0), x.std(0).clamp_min(1e-6)
    into, path = linears.into, linears.path
    start = [into.weight * std, into.bias + into.weight @ mean.to(into.weight)]
    start += [linears.out, path.weight * std, path.bias + path.weight @ mean.to(path.weight)]
    free = [part.detach().to(x).clone().requires_grad_() for part in start]
    optimizer = torch.optim.Adam(free, lr=rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1, pct_start=0.1)
    spread = (weight[:, None] * (y - y.mean(0)).square()).mean()
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        pick: Tensor | slice = slice(None)  # all, where a batch would draw some of them several times
        if len(x) > BATCH:
            pick = torch.randint(len(x), (BATCH,), generator=generator).to(x.device)
        with torch.enable_grad():
            z = (x[pick] - mean) / std
            fitted = act(z @ free[0].mT + free[1]) @ free[2].mT + z @ free[3].mT + free[4]
            loss = (weight[pick, None] * (fitted - y[pick]).square()).mean() / spread
        optimizer.zero_grad()
        loss.backward(inputs=free)  # an activation with parameters is not to be left with gradients
        optimizer.step()
        schedule.step()
    weight_in = (free[0] / std).detach().double()
    return Affine(weight_in, free[1].detach().double() - weight_in @ mean.double())


def channel_lines(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and offset of the best line from each channel of x to the same channel of y; slopes stay away from 0."""
    w = weight.double()[:, None] / weight.sum()
    x, y = x.double(), y.double()
    mean_x, mean_y = (w * x).sum(0), (w * y).sum(0)
    variance = (w * (x - mean_x).square()).sum(0).clamp_min(1e-12)
    slope = (w * (x - mean_x) * (y - mean_y)).sum(0) / variance
    slope = slope.clamp_min(0.1 / variance.sqrt())
    return slope, mean_y - slope * mean_x


def spread(path: Tensor, near: Tensor, x: Tensor) -> tuple[Affine, Tensor]:
    """Rows (K, C) and columns (C, K) with columns @ rows = path, well conditioned on the channels of x.

    In standardised channels the rows are the orthonormal matrix nearest to `near` (K, C), the teacher's idle units;
    for K < C they span the row space of `path`, which then must have rank K.
    """
    mean, std = x.double().mean(0), x.double().std(0).clamp_min(1e-6)
    rank, channels = near.shape
    left, _, right = torch.linalg.svd(near * std if rank >= channels else path * std, full_matrices=False)
    rows = left @ right if rank >= channels else right[:rank]
    return Affine(rows / std, -rows @ (mean / std)), path * std @ rows.mT


def _chunks(*tensors: Tensor) -> Iterator[Sequence[Tensor]]:
    yield from zip(*(tensor.split(CHUNK) for tensor in tensors), strict=True)
