"""adopt: a timm model with each of its blocks turned into a `Block`, bit-equal in outputs and gradients.

timm's own forward (embedding, pooling, head, intermediates) stays as it is; only the blocks are replaced, and only
those whose exact type stands below. Models of transformers and torchvision become timm's first. Anything else is
refused by name.
"""

import copy
from collections.abc import Callable
from typing import Any

from timm.layers import LayerScale, PatchDropout
from timm.models import deit, metaformer, mlp_mixer, swin_transformer, vision_transformer
from torch import Tensor, nn

from ..core import Block, Branch, Card, Grid, blocks_of, input_of, set_card, set_classes, set_input
from ..layers.layout import AcrossTokens
from .deit import DeiT
from .foreign import from_elsewhere, translate
from .foreign.dinov2 import Dinov2
from .guess import guess
from .windows import shifted_windows


class ShiftedWindows(swin_transformer.SwinTransformerBlock):
    """The token mixer of a Swin block: shift, windows, attention, and the way back; (B, H, W, C) in and out."""

    any_size = False
    """Whether maps of other sizes come than the block was built for: see `any_size`."""

    def __init__(self, block: swin_transformer.SwinTransformerBlock):
        nn.Module.__init__(self)
        self.__dict__.update(copy.copy(block.__dict__))
        self._modules = {"attn": block.attn}

    def forward(self, x: Tensor) -> Tensor:
        if not self.any_size:
            return self._attn(x)
        window = (int(self.window_size[0]), int(self.window_size[1]))
        shift = (window[0] // 2, window[1] // 2) if any(self.target_shift_size) else (0, 0)
        return shifted_windows(x, window, shift, self.attn)

    def extra_repr(self) -> str:
        return f"window={tuple(self.window_size)}, shift={tuple(self.shift_size)}"

    def _init_buffers(self) -> None:
        """timm asks the block's norm, which is not here, for the device and dtype of the mask; the weights say both."""
        if not self.dynamic_mask:
            like = self.attn.qkv.weight
            mask = self.get_attn_mask(device=like.device, dtype=like.dtype)
            self.register_buffer("attn_mask", mask, persistent=False)


class TrackGrid:
    """Forward hook that writes the size of the patch plane just embedded into a `Grid`."""

    def __init__(self, grid: Grid):
        self.grid = grid

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.ndim == 4:  # (B, H, W, C) with a dynamic image size
            self.grid.see((output.shape[1], output.shape[2]))
        else:
            self.grid.see(tuple(module.grid_size))  # type: ignore[arg-type]


class TrackMap(TrackGrid):
    """The same for an output that is a map (B, C, H, W)."""

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.grid.see((output.shape[2], output.shape[3]))


def _vit(block: vision_transformer.Block, **place: Any) -> Block:
    return Block(
        mix=Branch(block.norm1, block.attn, block.ls1, block.drop_path1),
        ffn=Branch(block.norm2, block.mlp, block.ls2, block.drop_path2),
        **place,
    )


def _swin(block: swin_transformer.SwinTransformerBlock, **place: Any) -> Block:
    return Block(
        mix=Branch(block.norm1, ShiftedWindows(block), drop=block.drop_path1),
        ffn=Branch(block.norm2, block.mlp, drop=block.drop_path2),
        **place,
    )


def _mixer(block: mlp_mixer.MixerBlock, **place: Any) -> Block:
    return Block(
        mix=Branch(block.norm1, AcrossTokens(block.mlp_tokens), drop=block.drop_path),
        ffn=Branch(block.norm2, block.mlp_channels, drop=block.drop_path),
        **place,
    )


def _resmlp(block: mlp_mixer.ResBlock, **place: Any) -> Block:
    return Block(
        mix=Branch(block.norm1, AcrossTokens(block.linear_tokens), _layer_scale(block.ls1), block.drop_path),
        ffn=Branch(block.norm2, block.mlp_channels, _layer_scale(block.ls2), block.drop_path),
        **place,
    )


def _gmlp(block: mlp_mixer.SpatialGatingBlock, **place: Any) -> Block:
    """gMLP mixes tokens inside its channel MLP: one branch, no ffn slot."""
    return Block(mix=Branch(block.norm, block.mlp_channels, drop=block.drop_path), ffn=None, **place)


def _metaformer(block: metaformer.MetaFormerBlock, **place: Any) -> Block:
    mix = (block.norm1, block.token_mixer, block.layer_scale1, block.drop_path1, block.res_scale1)
    ffn = (block.norm2, block.mlp, block.layer_scale2, block.drop_path2, block.res_scale2)
    return Block(mix=Branch(*mix, scale_last=True), ffn=Branch(*ffn, scale_last=True), **place)


def _layer_scale(gamma: nn.Parameter) -> LayerScale:
    scale = LayerScale(gamma.numel())
    scale.gamma = gamma
    return scale


ADOPTERS: dict[type[nn.Module], Callable[..., Block]] = {
    vision_transformer.Block: _vit,
    swin_transformer.SwinTransformerBlock: _swin,
    mlp_mixer.MixerBlock: _mixer,
    mlp_mixer.ResBlock: _resmlp,
    mlp_mixer.SpatialGatingBlock: _gmlp,
    metaformer.MetaFormerBlock: _metaformer,
}


def adopt(model: nn.Module, name: str | None = None, arguments: dict[str, Any] | None = None) -> nn.Module:
    """A copy of a model in block form: of timm's, or of a ViT, DeiT, DINOv2 or Swin of transformers or torchvision.

    Without a name, timm's own is taken and the arguments are read off the model; a model that they do not rebuild can
    be used, but not saved. The model given stays as it is. Blocks with hooks or with a forward of their own are
    refused, because replacing them would drop what was added; hooks elsewhere, inside the blocks too, are kept. A
    model of transformers or torchvision is converted to timm's, and both answers to one random image are compared.

    Args:
        model: The model.
        name: The name of `timm.create_model` that makes it, for the card; only for timm's models.
        arguments: The arguments of `timm.create_model`, for the card. For torchvision's Swin, which takes any size:
            `{"img_size": 256}` where it was not trained on 224 pixels.

    >>> import timm, leanformer as lf
    >>> model = lf.adopt(timm.create_model("deit_tiny_patch16_224"))
    >>> type(model).__name__, len(lf.blocks_of(model))
    ('VisionTransformer', 12)
    """
    if from_elsewhere(model):
        return _from_elsewhere(model, name, arguments)
    if blocks_of(model):
        new = copy.deepcopy(model)
        if hasattr(new, "card") and name is None:
            return new
    else:
        _refuse_unknown(model)
        new = copy.deepcopy(model)
        _replace_blocks(new)
    if name is None:
        name, arguments = guess(model)
    return set_card(new, Card(backbone=name, arguments=dict(arguments or {})))


def _from_elsewhere(model: nn.Module, name: str | None, arguments: dict[str, Any] | None) -> nn.Module:
    if name is not None:
        raise ValueError(f"a {type(model).__name__} is known by its class: give no name with it")
    theirs, told = translate(model, arguments)
    new = set_input(adopt(theirs, told.name, told.arguments), told.view)
    return new if told.classes is None else set_classes(new, told.classes)


def understood(model: nn.Module) -> bool:
    """Whether `adopt` can turn the model's blocks into ours."""
    try:
        _refuse_unknown(model)
    except ValueError:
        return False
    return True


def _replace_blocks(model: nn.Module) -> None:
    places = _PLACES[type(model)](model)
    for path, place in places.items():
        block = model.get_submodule(path)
        model.set_submodule(path, ADOPTERS[type(block)](block, **place).train(block.training))


def _refuse_unknown(model: nn.Module) -> None:
    kind = type(model)
    if kind not in _PLACES:
        known = ", ".join(sorted(k.__name__ for k in _PLACES))
        raise ValueError(f"cannot adopt {kind.__name__}: the model class is not understood; understood: {known}")
    for path in _PLACES[kind](copy.copy(model), track=False):
        block = model.get_submodule(path)
        if type(block) not in ADOPTERS:
            known = ", ".join(sorted(k.__name__ for k in ADOPTERS))
            raise ValueError(
                f"cannot adopt {kind.__name__}: its block {type(block).__name__} is not understood; understood: {known}"
            )
        for added in _HOOKS:
            if block.__dict__.get(added):
                raise ValueError(f"cannot adopt {kind.__name__}: {path} has {added.strip('_')} that would be lost")


_HOOKS = (
    "forward", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


def _places_sequence(model: Any, track: bool = True) -> dict[str, dict[str, Any]]:
    """ViT and MLP-Mixer: one stage of (B, N, C) blocks behind a patch embedding."""
    embed = model.patch_embed if hasattr(model, "patch_embed") else model.stem
    grid = Grid(getattr(model, "num_prefix_tokens", 0), tuple(embed.grid_size))
    if track:
        embed.register_forward_hook(TrackGrid(grid))
        if isinstance(getattr(model, "patch_drop", None), PatchDropout):
            model.patch_drop.leaves_grid = True
    dim = model.embed_dim
    return {f"blocks.{i}": {"dim": dim, "layout": "NLC", "grid": grid} for i in range(len(model.blocks))}


def _places_swin(model: Any, track: bool = True) -> dict[str, dict[str, Any]]:
    return {
        f"layers.{s}.blocks.{i}": {"dim": block.dim, "layout": "NHWC", "stage": s}
        for s, stage in enumerate(model.layers)
        for i, block in enumerate(stage.blocks)
    }


def _places_metaformer(model: Any, track: bool = True) -> dict[str, dict[str, Any]]:
    places = {}
    size = _after(model.stem.conv, input_of(model)["input_size"][1:])
    for s, stage in enumerate(model.stages):
        size = _after(stage.downsample.conv, size) if hasattr(stage.downsample, "conv") else size
        place: dict[str, Any] = {"dim": stage.blocks[0].mlp.fc2.weight.shape[0], "layout": "NCHW", "stage": s}
        if not stage.use_nchw:
            place |= {"layout": "NLC", "grid": Grid(0, size)}
            if track:
                stage.downsample.register_forward_hook(TrackMap(place["grid"]))
        places |= {f"stages.{s}.blocks.{i}": place for i in range(len(stage.blocks))}
    return places


def _after(conv: nn.Conv2d, size: tuple[int, int]) -> tuple[int, int]:
    """The size of a map behind a convolution."""
    sides = zip(size, conv.kernel_size, conv.stride, conv.padding, strict=True)
    height, width = ((side + 2 * int(padding) - kernel) // stride + 1 for side, kernel, stride, padding in sides)
    return height, width


_PLACES: dict[type[nn.Module], Callable[..., dict[str, dict[str, Any]]]] = {
    vision_transformer.VisionTransformer: _places_sequence,
    deit.VisionTransformerDistilled: _places_sequence,
    DeiT: _places_sequence,
    Dinov2: _places_sequence,
    swin_transformer.SwinTransformer: _places_swin,
    mlp_mixer.MlpMixer: _places_sequence,
    metaformer.MetaFormer: _places_metaformer,
}
