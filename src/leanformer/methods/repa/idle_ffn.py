"""The FFN branch of a block with idle channels: how it runs, how it folds, and how it starts from a trained FFN.

    z = skip(x) + drop(scale(fc2(BN([act(h) | h′])))),   [h | h′] = fc1(BN(x))

C channels, R hidden channels, A active ones; M rows are the tokens of all images.
"""

import copy
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...core import Branch
from ...layers.norms import affine_of
from . import fitting, idle
from .idle import Affine, FusedFFN, FusedPair, ThreeLinears

Norm = Literal["batch", "layer"]
IMAGES = 32
"""How many images at once go through the teacher while fitting."""


class IdleFFN(nn.Module):
    """The whole FFN branch with idle channels, norm and shortcut inside; made from the branch that it replaces.

    `norm="batch"` has a batch norm before each linear; `norm="layer"` keeps the branch's own norm before the first.
    With `ramp_epochs` it is a blend of the old branch and the new form, of which `progress` is the new form's share. It
    is built with 1, the end of the ramp; training sets it from 0 to 1.

    >>> from timm.layers import Mlp
    >>> IdleFFN(Branch(nn.LayerNorm(8), Mlp(8, 32)), active=8)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    progress: Tensor

    def __init__(
        self,
        branch: Branch,
        active: int,
        norm: Norm = "batch",
        prefix: int = 0,
        refine_steps: int = 0,
        ramp_epochs: float = 0.0,
    ):
        super().__init__()
        mlp: Any = branch.fn
        conv = isinstance(mlp.fc1, nn.Conv2d)
        self.axis = 1 if conv else -1
        self.active = active
        self.prefix, self.refine_steps, self.ramp_epochs = prefix, refine_steps, ramp_epochs
        if ramp_epochs:
            self.register_buffer("progress", torch.ones(()))
        if norm == "batch":
            self.norm1, self.norm2 = _batch_norm(mlp.fc1, branch.norm), _batch_norm(mlp.fc2)
            self.old_norm = branch.norm if ramp_epochs else None
            self.old_hidden_norm = (getattr(mlp, "norm", None) or nn.Identity()) if ramp_epochs else None
        else:
            self.norm = branch.norm
        self.fc1, self.fc2 = _with_bias(mlp.fc1), _with_bias(mlp.fc2)
        self.act = mlp.act if active or ramp_epochs else nn.Identity()
        # the batch norm behind it takes an activation's own shift (StarReLU's) away again in training
        shifted = norm == "batch" and isinstance(getattr(self.act, "bias", None), nn.Parameter)
        self.dead_parameters = ("act.bias",) if shifted else ()
        self.drop1 = getattr(mlp, "drop1", None) or getattr(mlp, "drop", None) or nn.Identity()
        self.drop2 = getattr(mlp, "drop2", None) or getattr(mlp, "drop", None) or nn.Identity()
        self.scale, self.drop, self.skip = branch.scale, branch.drop, branch.skip

    @property
    def folds_norm(self) -> bool:
        """Whether the norm before fc1 is a batch norm, so that it and the shortcut fold."""
        return hasattr(self, "norm1")

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(self._normalised(x))  # (…, R)
        new = idle.activate_some(h, self.act, self.active, self.axis)
        h = self.drop1(self._blend(self.act, h, new))
        if self.folds_norm:
            h = self._blend(self.old_hidden_norm, h, idle.normalise(self.norm2, h, self.axis))
        return self.skip(x) + self.drop(self.scale(self.drop2(self.fc2(h))))

    def _normalised(self, x: Tensor) -> Tensor:
        if not self.folds_norm:
            return self.norm(x)
        return self._blend(self.old_norm, x, idle.normalise(self.norm1, x, self.axis))

    def _blend(self, old: nn.Module | None, x: Tensor, new: Tensor) -> Tensor:
        """From old(x) to `new` as the ramp goes on; `new` where there is no ramp."""
        if not self.ramp_epochs:
            return new
        assert old is not None
        return (1 - self.progress) * old(x) + self.progress * new

    def affines(self) -> tuple[Affine, Affine]:
        """Both linears with all that is affine around them folded in: batch norms and the scale."""
        first, second = _affine(self.fc1), _affine(self.fc2)
        if self.folds_norm:
            first = idle.after(first, *affine_of(self.norm1))
            second = idle.after(second, *affine_of(self.norm2))
        return first, idle.scaled(second, self._diagonal(self.scale))

    def fused(self) -> nn.Module:
        """Eq. 7, or the pair with its batch norms folded where that multiplies less."""
        if self.ramp_epochs and not self.progress.is_meta and self.progress < 1:
            raise ValueError(
                f"this FFN is on its way from its old form to the one that folds, at {float(self.progress):.0%}; "
                f"train it to the end of its {self.ramp_epochs:g} ramp epochs first"
            )
        first, second = self.affines()
        hidden, channels = first.weight.shape
        conv = self.axis == 1
        act, skip = copy.deepcopy(self.act), copy.deepcopy(self.skip)
        norm = None if self.folds_norm else copy.deepcopy(self.norm)
        if 2 * (hidden - self.active) < channels:  # the C x C path would cost more than the idle channels
            return FusedPair(first, second, act, self.active, conv, norm, skip)
        if norm is None:
            three = idle.reparameterise(first, second, self.active, shortcut=self._diagonal(self.skip))
            return FusedFFN(three, act, conv)
        return FusedFFN(idle.reparameterise(first, second, self.active), act, conv, norm, skip)

    @torch.no_grad()
    def fit(self, x: Tensor, teacher_x: Tensor, teacher_y: Tensor, teacher: nn.Module) -> None:
        """Start from the teacher's FFN by least squares, in the form in which the fused module computes.

        The goal is halfway between what the teacher answers to its own input, which mends the drift of the blocks
        before, and to ours, which our input can explain better.
        """
        _refuse_other(teacher, self)
        weight = fitting.token_weights(teacher_y, self.axis, self.prefix)
        seen = fitting.rows(x if self.folds_norm else self.norm(x), self.axis)  # (M, C)
        goal = (teacher_y + torch.cat([teacher(part) for part in x.split(IMAGES)])) / 2
        missing = fitting.rows(goal - self.skip(x), self.axis)  # what the branch must add
        order, units = self._choose(seen, teacher_x, weight, teacher)
        into = Affine(units.weight[order[: self.active]], units.bias[order[: self.active]])
        three = self._solve(seen, into, missing, weight)
        if self.refine_steps and self.active:
            into = fitting.refine(three, seen, self.act, missing, weight, self.refine_steps)
            three = self._solve(seen, into, missing, weight)
        if self.folds_norm:
            self._fit_norm(x, teacher, teacher_x, weight)
        self._set(three, units.weight[order[self.active :]], seen)

    def _choose(self, seen: Tensor, teacher_x: Tensor, weight: Tensor, teacher: Any) -> tuple[Tensor, Affine]:
        """The hidden units, the active ones first, as the best linear maps from what we see.

        The idle ones follow by how much each of them matters alone.
        """

        def pairs() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            start = 0
            for part in teacher_x.split(IMAGES):
                h = fitting.rows(teacher.fn.fc1(teacher.norm(part)), self.axis)  # (m, R)
                stop = start + len(h)
                yield seen[start:stop], h, weight[start:stop]
                start = stop

        act, out = teacher.fn.act, _affine(teacher.fn.fc2, 0).weight.double()  # (C, R)
        units, left = fitting.hidden_units(pairs(), act, share=min(1, fitting.ROWS_TO_CHOOSE / len(seen)))
        first = fitting.choose_together(left, out, self.active)
        alone = (left.diagonal() * out.square().sum(0)).argsort(descending=True)
        return torch.cat([first, alone[~torch.isin(alone, first)]]), units

    def _solve(self, seen: Tensor, into: Affine, missing: Tensor, weight: Tensor) -> ThreeLinears:
        three = fitting.solve_linears(seen, into, self.act, missing, weight)
        rank = len(_affine(self.fc1).weight) - self.active
        if rank >= seen.shape[1]:
            return three
        within = fitting.leading_rows(three.path.weight, seen, rank)
        return fitting.solve_linears(seen, into, self.act, missing, weight, within)

    def _fit_norm(self, x: Tensor, teacher: Any, teacher_x: Tensor, weight: Tensor) -> None:
        """Batch statistics of x, and the best line from each of its channels to what the teacher's norm gives."""
        seen = fitting.rows(x, self.axis)
        slope, offset = fitting.channel_lines(seen, fitting.rows(teacher.norm(teacher_x), self.axis), weight)
        _set_batch_norm(self.norm1, seen, slope, offset)

    def _set(self, three: ThreeLinears, near: Tensor, seen: Tensor) -> None:
        """Write the three linears into fc1 and fc2, the linear path spread over the idle channels."""
        idle_rows, columns = fitting.spread(three.path.weight, near, seen)
        first = Affine(*(torch.cat(pair) for pair in zip(three.into, idle_rows)))
        second = Affine(torch.cat([three.out, columns], 1), three.path.bias - columns @ idle_rows.bias)
        scale = self._diagonal(self.scale).double()
        second = idle.scaled(second, torch.where(scale.abs() > 1e-12, 1 / scale, 0))
        if self.folds_norm:
            slope, offset = (v.double() for v in affine_of(self.norm1))
            first = idle.after(first, 1 / slope, -offset / slope)
        layers: Any = (self.fc1, self.fc2)
        for layer, values in zip(layers, (first, second), strict=True):
            layer.weight.copy_(values.weight.reshape(layer.weight.shape))
            layer.bias.copy_(values.bias)
        if self.folds_norm:
            self._rest_second_norm(seen)

    def _rest_second_norm(self, seen: Tensor) -> None:
        """Statistics of the hidden channels, and the gain and offset that undo them."""
        first = _affine(self.fc1)
        first = idle.after(first, *affine_of(self.norm1))
        h = torch.cat(
            [
                idle.activate_some(part @ first.weight.mT + first.bias, self.act, self.active, -1)
                for part in seen.split(8192)
            ]
        )
        one = torch.ones_like(h[0])
        _set_batch_norm(self.norm2, h, one, 0 * one)

    def _diagonal(self, module: nn.Module) -> Tensor:
        """The factor of each channel in an elementwise module: LayerScale, a ResScale, a division by a constant."""
        weight: Any = self.fc2.weight
        shape = (1, len(weight)) + (1, 1) * (self.axis == 1)
        return module(torch.ones(shape, device=weight.device, dtype=weight.dtype)).flatten()  # (C,)

    def extra_repr(self) -> str:
        return f"active={self.active}"


def _batch_norm(layer: nn.Module, replaced: nn.Module | None = None) -> nn.Module:
    """The batch norm before a linear, with the gain and offset of the norm that it replaces."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    kind = nn.BatchNorm2d if weight.ndim == 4 else nn.BatchNorm1d
    norm = kind(weight.shape[1], device=weight.device, dtype=weight.dtype)
    for ours, names in ((norm.weight, ("weight", "alpha")), (norm.bias, ("bias", "beta"))):
        for name in names:
            theirs = getattr(replaced, name, None)
            if isinstance(theirs, Tensor):
                ours.data.copy_(theirs.data.flatten())
    return norm


def _with_bias(layer: nn.Module) -> nn.Module:
    """The layer, with a bias of zeros if it has none: the fused form has one in any case."""
    if layer.bias is None:
        layer.bias = nn.Parameter(torch.zeros_like(layer.weight[:, 0].flatten()))  # type: ignore[index]
    return layer


def _affine(layer: nn.Module, bias: Any = None) -> Affine:
    return Affine(layer.weight.flatten(1), layer.bias if bias is None else bias)  # type: ignore[arg-type]


def _set_batch_norm(norm: Any, seen: Tensor, slope: Tensor, offset: Tensor) -> None:
    """A batch norm that has seen these rows, and that maps a row r to slope · r + offset."""
    mean, variance = seen.mean(0), seen.var(0)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)
    norm.num_batches_tracked.fill_(1)
    norm.weight.copy_(slope * torch.sqrt(variance + norm.eps))
    norm.bias.copy_(slope * mean + offset)


def _refuse_other(teacher: Any, module: Any) -> None:
    theirs = getattr(getattr(getattr(teacher, "fn", None), "fc1", None), "weight", None)
    if theirs is None or theirs.shape != module.fc1.weight.shape:
        raise ValueError("idle channels are fitted to a teacher whose FFN is the one that they replaced")
