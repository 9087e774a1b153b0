"""Where on the image each token lies, also after tokens were dropped, fused or slimmed.

    T₀ = 1,    T ← S T at each reducer, S its provenance        T: (B, tokens, patches)

A row of T says how much of each patch a token stands for. A fused token stands for no place: its row is zero.

B images, N tokens, P patches on an H x W plane, C channels.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from ..core import Block, Reducer, blocks_of
from ..core.reduce import refuse_untraceable


@dataclass
class Features:
    """What came into and out of one block in a forward pass, and where its tokens lay."""

    block: Block
    inputs: Tensor
    """What the token mixer was given."""
    places: Tensor | None
    """T at the block's input; None for a block on maps or where the tokens are the patches."""
    output: Tensor | None = None
    places_after: Tensor | None = None

    @property
    def prefix(self) -> int:
        grid = self.block.grid
        return grid.prefix if grid is not None else 0

    def plane(self, values: Tensor, after: bool = False) -> Tensor:
        """Values per token (B, prefix + N) or per place of a map (B, h, w) as amounts on the plane (B, h, w)."""
        if values.ndim == 3:
            return values
        grid, places = self.block.grid, self.places_after if after else self.places
        assert grid is not None
        patches = values[:, self.prefix :]  # (B, N)
        if places is not None:
            shares = places / places.sum(2, keepdim=True).clamp_min(1)  # a merged token's amount is shared out
            patches = (patches[:, None] @ shares.to(patches))[:, 0]  # (B, P)
        return patches.unflatten(1, grid.size)


@dataclass
class Watch:
    """All blocks' features of one forward pass, in the order in which they ran."""

    features: list[Features] = field(default_factory=list)
    places: Tensor | None = None


def channels_last(x: Tensor, block: Block) -> Tensor:
    """Features with the channels at the end: (B, N, C) or (B, H, W, C)."""
    return x.movedim(1, -1) if block.layout == "NCHW" else x


@contextmanager
def watching(model: nn.Module) -> Iterator[Watch]:
    """Within the context, a forward pass of the model leaves its blocks' features, and where their tokens lay.

    >>> import torch
    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
    >>> with watching(model) as watch:
    ...     _ = model(torch.zeros(1, 3, 32, 32))
    >>> [each.inputs.shape for each in watch.features]
    [torch.Size([1, 17, 32]), torch.Size([1, 17, 32])]
    """
    refuse_untraceable(model)
    watch, handles = Watch(), []
    for block in blocks_of(model).values():
        handles += _watch_reducers(watch, block)
        handles.append(block.mix.register_forward_pre_hook(_Enter(watch, block)))
        handles.append(block.register_forward_hook(_Leave(watch)))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class _Enter:
    watch: Watch
    block: Block

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if self.watch.features and self.watch.features[-1].block.stage != self.block.stage:
            self.watch.places = None  # a new stage has a plane of its own
        self.watch.features.append(Features(self.block, inputs[0], self.watch.places))


@dataclass
class _Leave:
    watch: Watch

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        last = self.watch.features[-1]
        last.output, last.places_after = output, self.watch.places


def _watch_reducers(watch: Watch, block: Block) -> list:
    slots = [getattr(block, slot) for slot in block.slots]
    return [
        slot.decision.register_forward_hook(_Reduced(watch, block, slot)) for slot in slots if isinstance(slot, Reducer)
    ]


@dataclass
class _Reduced:
    watch: Watch
    block: Block
    reducer: Reducer

    def __call__(self, module: nn.Module, inputs: tuple, decided: Tensor) -> None:
        grid, places = self.block.grid, self.watch.places
        assert grid is not None
        tokens = grid.size[0] * grid.size[1] if places is None else places.shape[1]
        rows = self.reducer.provenance(decided.detach(), tokens).float()  # (B, M, N)
        self.watch.places = rows if places is None else rows @ places
