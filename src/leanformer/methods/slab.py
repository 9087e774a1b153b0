"""SLAB (Guo et al., ICML 2024): layer norms turn into batch norms in training, and fold into the linears behind them.

    trained   γ norm(x) + (1 − γ) (BN(x) + η x)          γ from 1 to 0, linearly over the ramp; η is learnt
    fused     W (BN(x) + η x) + b = W′ x + b′            no norm is left before attention and FFN

The model multiplies as much as the backbone; what it saves are the norms.
SLAB's linear attention is no part of this. C channels.
"""

import copy
import dataclasses
from typing import Any

import torch
from timm.layers import Attention
from torch import Tensor, nn

from ..core import Block, Branch, Build, Layout, Method, select
from ..fields import Amount
from ..layers.norms import absorbed, affine_of, make_norm

FIRST = ("qkv", "fc1")
"""The linear behind the norm: an attention's, an FFN's."""


class ProgressiveNorm(nn.Module):
    """A batch norm with a shortcut, `BN(x) + η x`; with `ramp_epochs` a blend of it and the old norm.

    `progress` is the batch norm's share of the blend. The module is built with 1, the end of the ramp; training sets it
    from 0 to 1.

    >>> ProgressiveNorm(nn.LayerNorm(8), 8, "NLC", ramp_epochs=10)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    progress: Tensor

    def __init__(self, old: nn.Module, dim: int, layout: Layout, ramp_epochs: float = 0.0):
        super().__init__()
        self.ramp_epochs = ramp_epochs
        self.batch = make_norm("batch", dim, layout)
        self.eta = nn.Parameter(torch.ones(()))
        self.old = old if ramp_epochs else None
        if ramp_epochs:
            self.register_buffer("progress", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        new = self.batch(x) + self.eta * x
        if self.old is None:
            return new
        return (1 - self.progress) * self.old(x) + self.progress * new

    def affine(self) -> tuple[Tensor, Tensor]:
        """Scale and shift (C,) that the new form applies in evaluation."""
        if self.old is not None and not self.progress.is_meta and self.progress < 1:
            raise ValueError(
                f"this norm is on its way from its old form to a batch norm, at {float(self.progress):.0%}; "
                "train it to the end of its ramp_epochs first"
            )
        scale, shift = affine_of(self.batch)
        return scale + self.eta, shift


class ProgressiveBranch(Branch):
    """A residual branch whose norm becomes a batch norm, and which folds to one without a norm."""

    def fused(self) -> nn.Module:
        assert isinstance(self.norm, ProgressiveNorm)
        parts = {**self.parts(), "norm": nn.Identity(), "fn": copy.deepcopy(self.fn)}
        fn: Any = parts["fn"]
        name = first_linear(fn)
        assert name is not None
        setattr(fn, name, absorbed(getattr(fn, name), *self.norm.affine()))
        return Branch(**parts)


def first_linear(fn: Any) -> str | None:
    """What a token mixer or an FFN calls the linear that its input goes to first, or None where it has none.

    >>> from timm.layers import Mlp
    >>> first_linear(Mlp(8, 32)), first_linear(nn.Identity())
    ('fc1', None)
    """
    parts = {name for name, _ in fn.named_children()}
    known = type(fn) is Attention or {"fc1", "act", "fc2"} <= parts
    found = next((name for name in FIRST if name in parts), None)
    linear = getattr(fn, found) if found else None
    plain = isinstance(linear, nn.Linear) or (isinstance(linear, nn.Conv2d) and linear.kernel_size == (1, 1))
    return found if known and plain else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SLAB(Method, name="slab"):
    """Batch norms for the norms before FFNs, and before attention if asked for, in all blocks or in some.

    >>> import leanformer as lf
    >>> model = lf.apply(lf.create("deit_tiny_patch16_224"), lf.SLAB())
    >>> type(model.blocks[0].ffn.norm).__name__, type(model.blocks[0].ffn.fused().norm).__name__
    ('ProgressiveNorm', 'Identity')
    """

    ramp_epochs: Amount = 0.0
    """Epochs over which the old norms turn into batch norms, the paper's whole training; 0 starts with batch norms."""
    attention: bool = False
    """Whether the norms before attention go as well, as in the paper; False leaves token mixers to other methods."""
    blocks: tuple[int, ...] | None = None
    """Blocks to change, counted from 0 over the whole depth; None: all."""
    stages: tuple[int, ...] | None = None
    """Stages whose blocks are changed, counted from 0; None: all."""

    def off(self) -> "SLAB":
        return self.replace(blocks=())

    def swaps(self, model: nn.Module) -> dict[str, Build]:
        chosen = select(model, "ffn", self.blocks, self.stages)
        for path, block in chosen.items():
            _refuse_unknown(path, block.ffn)
        plan: dict[str, Build] = {path: self._build(block) for path, block in chosen.items()}
        if self.attention:
            for path, block in select(model, "mix", self.blocks, self.stages).items():
                _refuse_unknown(path, block.mix)
                plan[path] = self._build(block)
        return plan

    def advance(self, model: nn.Module, epoch: float) -> dict[str, float]:
        """Set how far the norms have turned into batch norms."""
        if not self.ramp_epochs:
            return {}
        progress = min(1.0, epoch / self.ramp_epochs)
        for module in model.modules():
            if isinstance(module, ProgressiveNorm) and module.ramp_epochs == self.ramp_epochs:
                module.progress.fill_(progress)
        return {"slab_progress": progress}

    def _build(self, block: Block) -> Build:
        ramp_epochs, dim, layout = self.ramp_epochs, block.dim, block.layout

        def build(old: nn.Module) -> nn.Module:
            assert isinstance(old, Branch)
            return ProgressiveBranch(**{**old.parts(), "norm": ProgressiveNorm(old.norm, dim, layout, ramp_epochs)})

        return build


def _refuse_unknown(path: str, branch: nn.Module) -> None:
    if isinstance(branch, ProgressiveBranch):
        return
    plain = type(branch) is Branch and not isinstance(branch.norm, nn.Identity)
    if not plain or first_linear(branch.fn) is None:
        kind = type(getattr(branch, "fn", branch)).__name__
        raise ValueError(
            f"{path}: {kind} is no attention or FFN with a norm before it and a linear as its first layer, "
            "into which the norm could fold; attention=False leaves token mixers as they are"
        )
