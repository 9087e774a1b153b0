"""MetaFormer: the architecture matters more than the token mixer, so any mixer may stand in any block.

    x + scale(mixer(norm(x)))         norm, scale, drop path and skip stay; only the mixer is another one

The mixers and what they do to prefix tokens stand in `layers.mixers`. Pooling, identity, convolutions and attention
run at any image size; random, spatial FC, spatial MLP and global filter fix the size the model was built for.
B batch, N tokens, C channels, H x W the plane of patches.
"""

import copy
import dataclasses
from functools import partial
from typing import Any, Self

import torch
from torch import nn

from ..core import Block, Branch, Method, blocks_of, input_of, select
from ..core.method import Build
from ..fields import Above0, Count
from ..layers.activations import activation
from ..layers.mixers import FIXED_SIZE, Mixer, MixerName, SelfAttention, check_odd, make_mixer


class MixerBranch(Branch):
    """A branch around one of our mixers."""

    @property
    def needs_grid(self) -> bool:
        return bool(getattr(self.fn, "needs_grid", False))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenMixer(Method, name="token_mixer"):
    """Another token mixer in the chosen blocks and stages; the weights of everything else stay.

    >>> import leanformer as lf
    >>> model = lf.apply(lf.create("deit_tiny_patch16_224"), lf.TokenMixer(mixer="pooling", blocks=(0, 1, 2, 3, 4, 5)))
    >>> type(lf.blocks_of(model)["blocks.0"].mix.fn).__name__
    'Pooling'
    """

    mixer: MixerName = "pooling"
    stages: tuple[int, ...] | None = None
    """Stages whose blocks get the mixer, counted from 0; None: all."""
    blocks: tuple[int, ...] | None = None
    """Blocks that get the mixer, counted from 0 over the whole depth; None: all."""
    pool_size: Count = 3
    kernel_size: Count | None = None
    """Side of the filters of depthwise (3 where None) and separable convolutions (7 where None)."""
    expansion: Above0 = 2.0
    """Width of the hidden layer of separable convolutions and of the spatial MLP, in widths of their input."""
    head_dim: Count = 32
    qkv_bias: bool = False
    proj_bias: bool = False
    act: str | None = None
    """Activation of separable convolutions (star_relu where None) and of the spatial MLP (gelu where None)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_odd("pool_size", self.pool_size)
        check_odd("kernel_size", self.kernel_size or 3)
        activation(self.act or "gelu")

    def swaps(self, model: nn.Module) -> dict[str, Build]:
        places = select(model, "mix", self.blocks, self.stages)
        for path, block in places.items():
            _refuse_inseparable(path, block)
        sizes = _planes(model) if places and self.mixer in FIXED_SIZE else {}
        return {
            path: partial(self._build, dim=block.dim, layout=block.layout, grid=block.grid, size=sizes.get(path))
            for path, block in places.items()
        }

    def off(self) -> Self:
        return self.replace(blocks=())

    def _build(self, old: nn.Module, **place: Any) -> nn.Module:
        assert isinstance(old, Branch)
        mixer = make_mixer(
            self.mixer, pool_size=self.pool_size, kernel_size=self.kernel_size, expansion=self.expansion,
            head_dim=self.head_dim, qkv_bias=self.qkv_bias, proj_bias=self.proj_bias, act=self.act, **place,
        )  # fmt: skip
        return MixerBranch(**{**old.parts(), "fn": mixer})


def _refuse_inseparable(path: str, block: Block) -> None:
    if not isinstance(block.mix, Branch):
        raise ValueError(f"{path} holds a {type(block.mix).__name__}, whose token mixer cannot be exchanged alone")
    separate = "ffn" in block.slots or isinstance(block.mix.fn, Mixer | SelfAttention)
    if not separate:
        raise ValueError(
            f"{path}: {type(block.mix.fn).__name__} mixes tokens and channels in one branch, so exchanging the token "
            "mixer would remove the channel MLP as well; choose a backbone that keeps them apart"
        )


@torch.no_grad()
def _planes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Path of each mix slot → the plane (H, W) that it sees at the model's own input size, without arithmetic."""
    twin = copy.deepcopy(model).to("meta").eval()
    images = torch.empty(1, *input_of(model)["input_size"], device="meta", dtype=next(twin.parameters()).dtype)
    planes: dict[str, tuple[int, int]] = {}
    for path, block in blocks_of(twin).items():
        block.mix.register_forward_pre_hook(partial(_note_plane, planes, f"{path}.mix", block))
    twin(images)
    return planes


def _note_plane(planes: dict[str, tuple[int, int]], path: str, block: Block, module: nn.Module, inputs: Any) -> None:
    if block.layout == "NLC":
        assert block.grid is not None
        planes[path] = block.grid.size
    else:
        shape = inputs[0].shape
        planes[path] = (shape[2], shape[3]) if block.layout == "NCHW" else (shape[1], shape[2])
