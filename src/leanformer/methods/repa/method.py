"""RePaFormer: most channels of an FFN stay idle in training, so that it folds to three small linears at inference.

    trained   z = x + fc2(BN([act(h) | h′])),   [h | h′] = fc1(BN(x))          Eq. 3
    fused     z = act(x W_in) W_out + x W                                       Eq. 7

idle_ratio θ is the share of hidden channels without activation. C channels, R hidden, A = (1 − θ) R active.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from torch import nn

from ...core import Block, Branch, Build, Choices, LocalRewrite, Method, blocks_of, select
from ...core.method import refuse_unordered
from ...fields import Amount, Share, Within
from . import idle
from .fast import REWRITES
from .idle import Rounding
from .idle_ffn import IdleFFN, Norm

PARTS = {"fc1", "act", "drop1", "norm", "fc2", "drop2", "drop"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RePa(Method, name="repa"):
    """Idle channels in the FFN of every block, or of the chosen blocks and stages.

    >>> import leanformer as lf
    >>> model = lf.apply(lf.create("deit_tiny_patch16_224"), lf.RePa(idle_ratio=0.75))
    >>> round(lf.measure.count(lf.fuse(model)).parameters / 1e6, 2)
    3.49
    """

    acts_on: ClassVar = "ffn"

    idle_ratio: Share | tuple[Share, ...] = 0.75
    """Share of hidden channels without activation: one for all blocks, or one for each block that is swapped, in the
    order of depth."""
    schedule: Literal["static", "linear"] = "static"
    """`linear` lets the ratio grow over depth to 1, and leaves the last block fully active."""
    norm: Norm = "batch"
    """`layer` keeps the norm before the FFN; the shortcut then stays outside what is fused."""
    rounding: Rounding = "ceil"
    """How the number of active channels becomes whole: ceil for the official ViT and Swin, floor for PoolFormer."""
    refine_steps: Annotated[int, Within(0)] = 100
    """Adam steps on each FFN alone when `lf.calibrate` fits it; 0 leaves it at least squares."""
    ramp_epochs: Amount = 0.0
    """Epochs over which norms and idle activations turn from their old form into the new one; 0 starts with the new."""
    blocks: tuple[int, ...] | None = None
    """Blocks to swap, counted from 0 over the whole depth; None: all."""
    stages: tuple[int, ...] | None = None
    """Stages whose blocks are swapped, counted from 0; None: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule == "linear" and (isinstance(self.idle_ratio, tuple) or self.idle_ratio < 0.5):
            raise ValueError(f"the linear schedule needs one idle_ratio of at least 0.5, not {self.idle_ratio}")
        if isinstance(self.idle_ratio, tuple):
            refuse_unordered("blocks", self.blocks)
            refuse_unordered("stages", self.stages)

    @classmethod
    def rewrites(cls) -> tuple[LocalRewrite, ...]:
        return REWRITES

    def off(self) -> "RePa":
        return self.replace(blocks=())

    @classmethod
    def choices(cls, model: nn.Module) -> Choices | None:
        served = tuple(i for i, block in enumerate(blocks_of(model).values()) if "ffn" in block.slots)
        if not served or not cls(blocks=served).serves(model):
            return None
        return Choices(served, most=0.75, steps=(0.25, 0.5, 0.75), fitted=True)

    @classmethod
    def with_shares(cls, shares: Mapping[int, float]) -> "RePa":
        return cls(blocks=tuple(sorted(shares)), idle_ratio=tuple(shares[block] for block in sorted(shares)))

    def advance(self, model: nn.Module, epoch: float) -> dict[str, float]:
        """Set how far the FFNs have turned from their old form into the one that folds."""
        if not self.ramp_epochs:
            return {}
        progress = min(1.0, epoch / self.ramp_epochs)
        for module in model.modules():
            if isinstance(module, IdleFFN) and module.ramp_epochs == self.ramp_epochs:
                module.progress.fill_(progress)
        return {"repa_progress": progress}

    def swaps(self, model: nn.Module) -> dict[str, Build]:
        chosen = select(model, "ffn", self.blocks, self.stages)
        for path, block in chosen.items():
            _refuse_unknown(path, block, self.norm)
        ratios = self._ratios(chosen, [f"{path}.ffn" for path in blocks_of(model)])
        return {
            path: functools.partial(
                _build, method=self, ratio=ratios[path], prefix=block.grid.prefix if block.grid else 0
            )
            for path, block in chosen.items()
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


def _build(branch: nn.Module, method: RePa, ratio: float, prefix: int) -> IdleFFN:
    assert isinstance(branch, Branch)
    active = idle.active_channels(len(branch.fn.fc1.weight), ratio, method.rounding)  # type: ignore[arg-type]
    return IdleFFN(branch, active, method.norm, prefix, method.refine_steps, method.ramp_epochs)


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
