"""The MetaFormer block: two residual branches and a seam, three slots that methods can swap.

    y = ffn(mix(pre(x)))            pre: the seam before the block, mix: the token mixer, ffn: the channel MLP
    branch(x) = skip(x) + drop(scale(fn(norm(x))))

B batch, N tokens, C channels, H x W the grid of patches.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .recompute import recomputing, statistics_kept

Layout = Literal["NLC", "NHWC", "NCHW"]
Size = tuple[int, int]
Slot = Literal["pre", "mix", "ffn"]


class Grid:
    """Where the patches of a token sequence lie: `prefix` tokens first, then H x W patches row by row.

    One object is shared by all blocks of a resolution. The backbone tells it every size of plane that it meets, and a
    module asks for the plane of the number of patches it was given: so a pass at another size in between, in another
    thread or before a recomputation, changes nothing for this one, unless its plane has another shape and the same
    number of patches (8 x 2 and 4 x 4): of those the one seen last is answered.

    >>> grid = Grid(prefix=1, size=(14, 14))
    >>> grid.see((6, 6))
    >>> grid.tokens, grid.plane(196), grid.plane(36)
    (37, (14, 14), (6, 6))
    """

    def __init__(self, prefix: int, size: Size):
        self.prefix = prefix
        self.size = size
        self._planes = {size[0] * size[1]: size}

    def see(self, size: Size) -> None:
        """Learn the plane of the images that come now."""
        if size != self.size:
            self.size = size
            self._planes = {**self._planes, size[0] * size[1]: size}

    def plane(self, patches: int, made_smaller: Callable[[Size], Size] = lambda size: size) -> Size:
        """Height and width of the plane that so many patches fill.

        Args:
            patches: how many tokens there are behind the prefix.
            made_smaller: a plane of the backbone → what is left of it at this place of the model; by default all.

        >>> Grid(prefix=1, size=(14, 14)).plane(49, lambda size: (size[0] // 2, size[1] // 2))
        (7, 7)
        """
        for size in (self.size, *self._planes.values()):
            height, width = made_smaller(size)
            if height * width == patches:
                return height, width
        height, width = made_smaller(self.size)
        raise ValueError(
            f"{patches} patch tokens do not fill the plane of {height} x {width} patches; what needs the plane "
            "needs all patches in their places"
        )

    @property
    def tokens(self) -> int:
        return self.prefix + self.size[0] * self.size[1]

    def __repr__(self) -> str:
        return f"Grid(prefix={self.prefix}, size={self.size})"


class Branch(nn.Module):
    """One residual branch, `skip(x) + drop(scale(fn(norm(x))))`.

    `scale_last` puts the scale after the drop: the same function, in the order of rounding of MetaFormer's code.

    >>> import torch
    >>> Branch(nn.LayerNorm(8), nn.Linear(8, 8))(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        norm: nn.Module,
        fn: nn.Module,
        scale: nn.Module | None = None,
        drop: nn.Module | None = None,
        skip: nn.Module | None = None,
        scale_last: bool = False,
    ):
        super().__init__()
        self.norm = norm
        self.fn = fn
        self.scale = scale or nn.Identity()
        self.drop = drop or nn.Identity()
        self.skip = skip or nn.Identity()
        self.scale_last = scale_last

    def residual(self, x: Tensor, **mask: Any) -> Tensor:
        """What the branch adds to its skip path."""
        return self.scaled(self.fn(self.norm(x), **mask))

    def scaled(self, y: Tensor) -> Tensor:
        """Scale and drop: what happens to the output of `fn` before it is added."""
        return self.scale(self.drop(y)) if self.scale_last else self.drop(self.scale(y))

    def forward(self, x: Tensor, **mask: Any) -> Tensor:
        return self.skip(x) + self.residual(x, **mask)

    def parts(self) -> dict[str, Any]:
        """The constructor's arguments, for methods that rebuild the branch around the same modules."""
        return {name: getattr(self, name) for name in ("norm", "fn", "scale", "drop", "skip", "scale_last")}


class Block(nn.Module):
    """A block with its slots, and what a method must know of the place: width, layout, stage, grid.

    Channels beyond the block's width are what the token mixer hands on to the next block of this forward pass (how
    many patches a merged token stands for, say); they pass by the MLP untouched.

    >>> import torch
    >>> block = Block(mix=Branch(nn.LayerNorm(8), nn.Identity()), ffn=Branch(nn.LayerNorm(8), nn.Linear(8, 8)), dim=8)
    >>> block(torch.zeros(2, 5, 8)).shape, block.slots
    (torch.Size([2, 5, 8]), ('pre', 'mix', 'ffn'))
    """

    def __init__(
        self,
        *,
        mix: nn.Module,
        ffn: nn.Module | None,
        dim: int,
        pre: nn.Module | None = None,
        layout: Layout = "NLC",
        stage: int = 0,
        grid: Grid | None = None,
    ):
        super().__init__()
        self.pre = pre or nn.Identity()
        self.mix = mix
        self.ffn = ffn or nn.Identity()
        self.slots: tuple[Slot, ...] = ("pre", "mix", "ffn") if ffn is not None else ("pre", "mix")
        self.dim = dim
        self.layout: Layout = layout
        self.stage = stage
        self.grid = grid

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if self.training and recomputing():
            with statistics_kept(self):
                return self._slots(x, attn_mask, is_causal)
        return self._slots(x, attn_mask, is_causal)

    def _slots(self, x: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        x = self.pre(x)
        masked = attn_mask is not None or is_causal
        x = self.mix(x, attn_mask=attn_mask, is_causal=is_causal) if masked else self.mix(x)
        if self.layout == "NLC" and x.shape[-1] > self.dim:
            x, handed_on = x[..., : self.dim], x[..., self.dim :]
            return torch.cat([self.ffn(x), handed_on], dim=-1)  # (B, N, dim + handed on)
        return self.ffn(x)

    def set_input_size(self, *args: Any, **kwargs: Any) -> None:
        """Passed on to the token mixer: timm's hierarchical models resize their windows through the block."""
        fn = getattr(self.mix, "fn", None)
        if hasattr(fn, "set_input_size"):
            fn.set_input_size(*args, **kwargs)  # type: ignore[union-attr]

    def extra_repr(self) -> str:
        return f"dim={self.dim}, layout={self.layout}, stage={self.stage}"


def blocks_of(model: nn.Module) -> dict[str, Block]:
    """The blocks of a model by path, in the order in which they run.

    >>> import leanformer as lf
    >>> list(blocks_of(lf.create("deit_tiny_patch16_224")))[:2]
    ['blocks.0', 'blocks.1']
    """
    return {path: module for path, module in model.named_modules() if isinstance(module, Block)}


def slots_of(model: nn.Module) -> dict[str, nn.Module]:
    """What stands in the slots of a model's blocks, by path, in the order in which they run.

    >>> import leanformer as lf
    >>> list(slots_of(lf.create("deit_tiny_patch16_224", depth=1)))
    ['blocks.0.pre', 'blocks.0.mix', 'blocks.0.ffn']
    """
    return {f"{path}.{slot}": getattr(block, slot) for path, block in blocks_of(model).items() for slot in block.slots}
