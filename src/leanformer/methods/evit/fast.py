"""Blocks that drop tokens, laid out for speed: attention that tells the class row, tokens reorganised in one pass.

Both are rewrites of slots that rank their tokens and choose among them with a `Choose`, as EViT's do.
"""

from typing import Any

from timm.layers import Attention
from torch import Tensor, nn

from ...core import H200, Block, Branch, LocalRewrite
from ...layers.attention import attend, join_heads, project
from ...layers.norms import plain_layer_norm
from .kernels.choose import MOST_SCORES, choose_by_counting
from .kernels.class_attention import HEAD_DIMS, attention_with_class_row, row_pays
from .kernels.reorganise import MOST_CHANNELS, one_pass_pays, reorganise_in_one_pass
from .reorganise import Choose


class ClassRowAttention(nn.Module):
    """timm's attention with another way to its output and the class row: both from one kernel.

    >>> import torch
    >>> y, row = ClassRowAttention(Attention(64, num_heads=2)).eval().attend_with_class_row(torch.randn(4, 10, 64))
    >>> y.shape, row.shape
    (torch.Size([4, 10, 64]), torch.Size([4, 10]))
    """

    def __init__(self, attention: Attention):
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, **mask: Any) -> Tensor:
        return self.attention(x, **mask)

    def attend_with_class_row(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the attention gives, (B, N, C), and the class token's row of its map, mean over heads, (B, N)."""
        if not row_pays(*x.shape[:2]):
            return attend(self.attention, x)
        q, k, v = project(self.attention, x)  # (B, H, N, D) each
        y, row = attention_with_class_row(q, k, v)  # (B, N, H, D), (B, N)
        return join_heads(self.attention, x, y.transpose(1, 2)), row


class OnePassReduction(nn.Module):
    """A slot that drops tokens and the FFN behind it; residual sum, reorganisation and the FFN's norm are one pass."""

    def __init__(self, slot: Any, ffn: nn.Module):
        super().__init__()
        self.slot, self.ffn = slot, ffn
        self.normed = isinstance(ffn, Branch) and plain_layer_norm(ffn.norm)

    def forward(self, x: Tensor, **mask: Any) -> Tensor:
        slot, ffn = self.slot, self.ffn
        droppable = x.shape[1] - slot.prefix
        keep = slot.keep(droppable)
        if keep == droppable or mask or not one_pass_pays(x.shape[0]):
            return ffn(slot(x, **mask))
        y, received = attend(slot.fn, slot.norm(x), slot.score)  # (B, N, C), (B, N)
        score = received[:, slot.prefix :]  # (B, P)
        norm: Any = ffn.norm if self.normed else None
        u, z = reorganise_in_one_pass(
            slot.skip(x), slot.scaled(y), score, slot.decision(score, keep), slot.fuse_tokens,
            *((norm.weight, norm.bias, norm.eps) if self.normed else (None, None, 0.0)),
        )  # fmt: skip
        if not self.normed:
            return ffn(u)
        assert isinstance(ffn, Branch)
        return ffn.skip(u) + ffn.scaled(ffn.fn(z))  # (B, prefix + K + 1, C)


def reduces(module: Any) -> bool:
    """Whether a slot is an attention branch that chooses among its tokens.

    >>> reduces(Branch(nn.LayerNorm(8), nn.Linear(8, 8)))
    False
    """
    chooses = isinstance(module, Branch) and isinstance(getattr(module, "decision", None), Choose)
    return chooses and type(module.fn) in (Attention, ClassRowAttention)


def takes_class_row(module: Any) -> bool:
    """Whether the kernel can give this slot its class row: ranks by it, and has heads of a width the kernel takes."""
    if not reduces(module) or module.score != "class" or type(module.fn) is not Attention:
        return False
    return module.fn.head_dim in HEAD_DIMS


def with_class_row(slot: Any) -> Any:
    """The slot with its attention replaced, in place."""
    slot.fn = ClassRowAttention(slot.fn)
    return slot


def takes_one_pass(block: Any) -> bool:
    """Whether a block's first slot drops tokens that can be reorganised in one pass."""
    return isinstance(block, Block) and reduces(block.mix) and block.layout == "NLC" and block.dim <= MOST_CHANNELS


def in_one_pass(block: Any) -> Any:
    """The block with both slots in one module, in place."""
    block.mix, block.ffn = OnePassReduction(block.mix, block.ffn), nn.Identity()
    return block


class ChooseByCounting(Choose):
    """The indices of the highest scores, each one's rank found by counting those ahead of it.

    >>> import torch
    >>> ChooseByCounting()(torch.tensor([[0.1, 0.7, 0.2]]), 2)
    tensor([[1, 2]])
    """

    def forward(self, score: Tensor, keep: int) -> Tensor:
        return choose_by_counting(score, keep) if score.shape[1] <= MOST_SCORES else super().forward(score, keep)


REWRITES = (
    LocalRewrite("attention with class row", takes_class_row, with_class_row, measured_on=H200),
    LocalRewrite(
        "tokens ranked by counting",
        lambda module: type(module) is Choose,
        lambda choose: ChooseByCounting(),
        measured_on=H200,
    ),
    LocalRewrite("tokens reorganised in one pass", takes_one_pass, in_one_pass, measured_on=H200),
)
"""Where tokens leave: the class token's row from the attention's own kernel; each token's rank by counting those ahead
of it; the residual sum, the kept tokens, the fused rest and the next norm in one pass."""
