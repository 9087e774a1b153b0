"""Where on the image each token lies, also after tokens were dropped, fused or slimmed.

    T₀ = one,    T ← T[chosen] at a place that drops,    T ← A T at a slimming        T: (B, tokens, patches)

A row of T says how much of each patch a token stands for. A fused token stands for no place: its row is zero.

B images, N tokens, P patches on an H x W plane, C channels.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Block, Grid, blocks_of
from ..layers.tokens import Choose
from ..methods.sit.slimming import Slimming
from ..methods.sit.static_slimming import PlaneSlimming, halved


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
            patches = (patches[:, None] @ places.to(patches))[:, 0]  # (B, P)
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

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
    >>> with watching(model) as watch:
    ...     _ = model(torch.zeros(1, 3, 32, 32))
    >>> [each.inputs.shape for each in watch.features]
    [torch.Size([1, 17, 32]), torch.Size([1, 17, 32])]
    """
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
    handles = []
    for slot in block.slots:
        module = getattr(block, slot)
        choose = getattr(module, "choose", None)
        if isinstance(choose, Choose):
            handles.append(choose.register_forward_hook(_Chosen(watch, block.grid, bool(module.fuse_tokens))))
        elif isinstance(module, Slimming):
            handles.append(module.register_forward_pre_hook(_Slimmed(watch)))
        elif isinstance(module, PlaneSlimming):
            handles.append(module.register_forward_pre_hook(_Halved(watch)))
        elif getattr(module, "leaves_grid", False):
            raise ValueError(f"{type(module).__name__} mixes patches in a way that cannot be traced to their places")
    return handles


@dataclass
class _Chosen:
    watch: Watch
    grid: Grid | None
    fuses: bool

    def __call__(self, module: nn.Module, inputs: tuple, chosen: Tensor) -> None:
        places = self.watch.places
        if places is None:
            assert self.grid is not None
            patches = self.grid.size[0] * self.grid.size[1]
            places = torch.eye(patches, device=chosen.device).expand(len(chosen), -1, -1)  # (B, P, P)
        kept = places.gather(1, chosen[..., None].expand(-1, -1, places.shape[2]))  # (B, K, P)
        self.watch.places = F.pad(kept, (0, 0, 0, int(self.fuses)))  # the fused token lies nowhere


@dataclass
class _Slimmed:
    watch: Watch

    def __call__(self, module: Slimming, inputs: tuple[Tensor, ...]) -> None:
        with torch.no_grad():
            weights = module.weights(inputs[0]).float()  # (B, N̂, N)
        self.watch.places = weights if self.watch.places is None else weights @ self.watch.places


@dataclass
class _Halved:
    watch: Watch

    def __call__(self, module: PlaneSlimming, inputs: tuple[Tensor, ...]) -> None:
        size, height_width = halved(module.grid.size, module.before + 1), module.grid.size
        cells = torch.arange(size[0] * size[1], device=inputs[0].device).view(1, 1, *size).float()
        owner = F.interpolate(cells, size=height_width, mode="nearest").flatten().long()  # (P,)
        places = F.one_hot(owner, size[0] * size[1]).T.float()  # (N̂, P)
        self.watch.places = (places / places.sum(1, keepdim=True)).expand(len(inputs[0]), -1, -1)
