"""RePaFormer: most channels of an FFN stay idle in training, so that it folds to three small linears at inference.

    trained   z = x + fc2(BN([act(h) | h′])),   [h | h′] = fc1(BN(x))          Eq. 3
    fused     z = act(x W_in) W_out + x W                                       Eq. 7

idle_ratio θ is the share of hidden channels without activation. C channels, R hidden, A = (1 − θ) R active.
"""

import copy
import dataclasses
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core import Block, Branch, Build, Method, blocks_of, select
from ..layers import fitting, idle
from ..layers.idle import Affine, FusedFFN, FusedPair, Rounding, ThreeLinears

PARTS = {"fc1", "act", "drop1", "norm", "fc2", "drop2", "drop"}


class IdleFFN(nn.Module):
    """The whole FFN branch with idle channels, norm and shortcut inside; made from the branch that it replaces.

    `norm="batch"` has a batch norm before each linear; `norm="layer"` keeps the branch's own norm before the first.

    >>> from timm.layers import Mlp
    >>> IdleFFN(Branch(nn.LayerNorm(8), Mlp(8, 32)), active=8)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, branch: Branch, active: int, norm: Literal["batch", "layer"] = "batch", refine_steps: int = 0):
        super().__init__()
        mlp: Any = branch.fn
        conv = isinstance(mlp.fc1, nn.Conv2d)
        self.axis = 1 if conv else -1
        self.active = active
        self.refine_steps = refine_steps
        if norm == "batch":
            self.norm1, self.norm2 = _batch_norm(mlp.fc1, branch.norm), _batch_norm(mlp.fc2)
        else:
            self.norm = branch.norm
        self.fc1, self.fc2 = _with_bias(mlp.fc1), _with_bias(mlp.fc2)
        self.act = mlp.act if active else nn.Identity()
        self.drop1 = getattr(mlp, "drop1", None) or getattr(mlp, "drop", None) or nn.Identity()
        self.drop2 = getattr(mlp, "drop2", None) or getattr(mlp, "drop", None) or nn.Identity()
        self.scale, self.drop, self.skip = branch.scale, branch.drop, branch.skip

    @property
    def folds_norm(self) -> bool:
        """Whether the norm before fc1 is a batch norm, so that it and the shortcut fold."""
        return hasattr(self, "norm1")

    def forward(self, x: Tensor) -> Tensor:
        h = idle.normalise(self.norm1, x, self.axis) if self.folds_norm else self.norm(x)
        h = self.drop1(idle.activate_some(self.fc1(h), self.act, self.active, self.axis))  # (…, R)
        if self.folds_norm:
            h = idle.normalise(self.norm2, h, self.axis)
        return self.skip(x) + self.drop(self.scale(self.drop2(self.fc2(h))))

    def affines(self) -> tuple[Affine, Affine]:
        """Both linears with all that is affine around them folded in: batch norms and the scale."""
        first, second = _affine(self.fc1), _affine(self.fc2)
        if self.folds_norm:
            first = idle.after(first, *idle.affine_of(self.norm1))
            second = idle.after(second, *idle.affine_of(self.norm2))
        return first, idle.scaled(second, self._diagonal(self.scale))

    def fused(self) -> nn.Module:
        """Eq. 7, or the pair with its batch norms folded where that multiplies less."""
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
        """Start from the teacher's FFN by least squares: what it answers, from what this module sees."""
        _refuse_other(teacher, self)
        weight = fitting.token_weights(fitting.rows(teacher_y, self.axis))
        seen = fitting.rows(x if self.folds_norm else self.norm(x), self.axis)  # (M, C)
        skipped = fitting.rows(self.skip(x), self.axis)
        missing = fitting.rows(teacher_y, self.axis) - skipped  # what the branch must add
        order, units = self._choose(seen, teacher_x, weight, teacher)
        into = Affine(units.weight[order[: self.active]], units.bias[order[: self.active]])
        idle_rows = Affine(units.weight[order[self.active :]], units.bias[order[self.active :]])
        three = self._solve(seen, into, missing, weight)
        if self.refine_steps and self.active:
            into = fitting.refine(three, seen, self.act, missing, weight, self.refine_steps)
            three = self._solve(seen, into, missing, weight)
        if self.folds_norm:
            self._fit_norm(x, teacher, teacher_x, weight)
        self._set(three, idle_rows, seen)

    def _choose(self, seen: Tensor, teacher_x: Tensor, weight: Tensor, teacher: Any) -> tuple[Tensor, Affine]:
        """The hidden units, those first whose activation matters most, as the best linear maps from what we see."""

        def pairs() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            start = 0
            for part in teacher_x.split(32):
                h = fitting.rows(teacher.fn.fc1(teacher.norm(part)), self.axis)  # (m, R)
                stop = start + len(h)
                yield seen[start:stop], h, weight[start:stop]
                start = stop

        units, misfit = fitting.hidden_units(pairs(), teacher.fn.act)
        importance = misfit * _affine(teacher.fn.fc2, 0).weight.double().square().sum(0)
        return importance.argsort(descending=True), units

    def _solve(self, seen: Tensor, into: Affine, missing: Tensor, weight: Tensor) -> ThreeLinears:
        three = fitting.solve_linears(seen, into, self.act, missing, weight)
        rank = len(self.fc1.weight) - self.active
        if rank >= seen.shape[1]:
            return three
        within = fitting.leading_rows(three.path.weight, seen, rank)
        return fitting.solve_linears(seen, into, self.act, missing, weight, within)

    def _fit_norm(self, x: Tensor, teacher: Any, teacher_x: Tensor, weight: Tensor) -> None:
        """Batch statistics of x, and the best line from each of its channels to what the teacher's norm gives."""
        seen = fitting.rows(x, self.axis)
        slope, offset = fitting.channel_lines(seen, fitting.rows(teacher.norm(teacher_x), self.axis), weight)
        _set_batch_norm(self.norm1, seen, slope, offset)

    def _set(self, three: ThreeLinears, idle_rows: Affine, seen: Tensor) -> None:
        """Write the three linears into fc1 and fc2, the linear path spread over the idle channels."""
        idle_rows, columns = fitting.spread(three.path.weight, idle_rows.weight, seen)
        first = Affine(*(torch.cat(pair) for pair in zip(three.into, idle_rows)))
        second = Affine(torch.cat([three.out, columns], 1), three.path.bias - columns @ idle_rows.bias)
        scale = self._diagonal(self.scale).double()
        second = idle.scaled(second, torch.where(scale.abs() > 1e-12, 1 / scale, 0))
        if self.folds_norm:
            slope, offset = (v.double() for v in idle.affine_of(self.norm1))
            first = idle.after(first, 1 / slope, -offset / slope)
        for layer, values in ((self.fc1, first), (self.fc2, second)):
            layer.weight.copy_(values.weight.reshape(layer.weight.shape))
            layer.bias.copy_(values.bias)
        if self.folds_norm:
            self._rest_second_norm(seen)

    def _rest_second_norm(self, seen: Tensor) -> None:
        """Statistics of the hidden channels, and the gain and offset that undo them."""
        first = _affine(self.fc1)
        first = idle.after(first, *idle.affine_of(self.norm1))
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


class OverDepth(str):
    """How the idle ratio runs over depth. Every method has a `schedule` to call during training: this one is both.

    >>> OverDepth("linear") == "linear", OverDepth("linear")(nn.Linear(2, 2), epoch=3.0)
    (True, {})
    """

    def __call__(self, model: nn.Module, epoch: float) -> dict[str, float]:
        return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RePa(Method, name="repa"):
    """Idle channels in the FFN of every block, or of the chosen blocks and stages.

    >>> import leanformer as lf
    >>> model = lf.apply(lf.create("deit_tiny_patch16_224"), lf.RePa(idle_ratio=0.75))
    >>> round(lf.measure.count(lf.fuse(model)).parameters / 1e6, 2)
    3.49
    """

    idle_ratio: float | tuple[float, ...] = 0.75
    """Share of hidden channels without activation: one for all blocks, or one for each block that is swapped."""
    schedule: str = OverDepth("static")  # type: ignore[assignment]
    """`linear` lets the ratio grow over depth to 1, and leaves the last block fully active."""
    norm: Literal["batch", "layer"] = "batch"
    """`layer` keeps the norm before the FFN; the shortcut then stays outside what is fused."""
    rounding: Rounding = "ceil"
    """How the number of active channels becomes whole: ceil for the official ViT and Swin, floor for PoolFormer."""
    refine_steps: int = 0
    """Adam steps on each FFN alone when `lf.calibrate` fits it; 0 leaves it at least squares."""
    blocks: tuple[int, ...] | None = None
    stages: tuple[int, ...] | None = None
    """Blocks (0-based, over the whole depth) and stages to swap; None swaps all."""

    def __post_init__(self) -> None:
        for ratio in self.idle_ratio if isinstance(self.idle_ratio, tuple) else (self.idle_ratio,):
            if not 0 <= ratio <= 1:
                raise ValueError(f"idle_ratio {ratio} is not between 0 and 1")
        for option, known in (
            ("schedule", ("static", "linear")),
            ("norm", ("batch", "layer")),
            ("rounding", ("ceil", "floor", "nearest")),
        ):
            if getattr(self, option) not in known:
                raise ValueError(f"{option} '{getattr(self, option)}' is not one of {', '.join(known)}")
        object.__setattr__(self, "schedule", OverDepth(self.schedule))
        if self.schedule == "linear" and (isinstance(self.idle_ratio, tuple) or self.idle_ratio < 0.5):
            raise ValueError(f"the linear schedule needs one idle_ratio of at least 0.5, not {self.idle_ratio}")

    def off(self) -> "RePa":
        return self.replace(blocks=())

    def swaps(self, model: nn.Module) -> dict[str, Build]:
        chosen = select(model, "ffn", self.blocks, self.stages)
        for path, block in chosen.items():
            _refuse_unknown(path, block, self.norm)
        ratios = self._ratios(chosen, [f"{path}.ffn" for path in blocks_of(model)])
        return {
            path: functools.partial(
                _build, ratio=ratios[path], norm=self.norm, rounding=self.rounding, refine_steps=self.refine_steps
            )
            for path in chosen
        }

    def _ratios(self, chosen: Collection[str], every: Sequence[str]) -> dict[str, float]:
        """Slot path → idle ratio."""
        if not isinstance(self.idle_ratio, tuple):
            static = [self.idle_ratio] * len(every)
            ratios = idle.linear_schedule(self.idle_ratio, len(every)) if self.schedule == "linear" else static
            return dict(zip(every, ratios, strict=True))
        if chosen and len(self.idle_ratio) != len(chosen):
            raise ValueError(f"idle_ratio has {len(self.idle_ratio)} values for {len(chosen)} blocks")
        return dict(zip(chosen, self.idle_ratio))


def _build(
    branch: nn.Module, ratio: float, norm: Literal["batch", "layer"], rounding: Rounding, refine_steps: int
) -> IdleFFN:
    assert isinstance(branch, Branch)
    hidden = len(branch.fn.fc1.weight)  # type: ignore[arg-type]
    return IdleFFN(branch, idle.active_channels(hidden, ratio, rounding), norm, refine_steps)


def _refuse_unknown(path: str, block: Block, norm: str) -> None:
    """Idle channels need a plain pair of linears with one activation between them, in a residual branch."""
    branch = block.ffn
    if isinstance(branch, IdleFFN):
        return
    mlp = getattr(branch, "fn", None)
    kind = type(mlp if isinstance(branch, Branch) else branch).__name__
    parts = {name for name, _ in mlp.named_children()} if isinstance(mlp, nn.Module) else set()
    if not isinstance(branch, Branch) or not {"fc1", "act", "fc2"} <= parts <= PARTS or not _is_pair(mlp, block.dim):
        raise ValueError(
            f"{path}: the FFN {kind} is no pair of linears with one activation between them (gated FFNs are none); "
            "repa works on timm's Mlp and FFNs of its form"
        )
    if norm == "layer" and not isinstance(getattr(mlp, "norm", None) or nn.Identity(), nn.Identity):
        raise ValueError(
            f"{path}: {kind} has a norm on its hidden channels, which norm='layer' cannot fold; use 'batch'"
        )


def _is_pair(mlp: Any, dim: int) -> bool:
    first, second = mlp.fc1.weight.shape, mlp.fc2.weight.shape
    plain = all(
        isinstance(fc, nn.Linear | nn.Conv2d) and all(n == 1 for n in fc.weight.shape[2:]) for fc in (mlp.fc1, mlp.fc2)
    )
    return plain and first[1] == second[0] == dim and first[0] == second[1]


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


def _refuse_other(teacher: Any, module: IdleFFN) -> None:
    same = isinstance(teacher, Branch) and getattr(getattr(teacher.fn, "fc1", None), "weight", None) is not None
    if not same or teacher.fn.fc1.weight.shape != module.fc1.weight.shape:
        raise ValueError("idle channels are fitted to a teacher whose FFN is the one that they replaced")
