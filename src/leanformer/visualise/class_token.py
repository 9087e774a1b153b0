"""Where the class token looks: its attention to the patches in the last block, head by head (DINO's Figure 1).

    a_h = softmax(q_h kᵀ_h / √d)          q_h: the class token's query

B images, H heads, N tokens, d channels of a head, h x w the plane of patches.
"""

from collections.abc import Sequence

import torch
from timm.layers import Attention
from torch import Tensor, nn

from ..core import Block, blocks_of
from ..layers.attention import project
from .figure import AMOUNTS, Figure, panels
from .images import Picture, as_batch, enlarged, named, pictures, where
from .places import watching

MOST_HEADS = 8
"""Heads that get a panel of their own."""


def attention_maps(model: nn.Module, batch: Tensor) -> Tensor:
    """The class token's attention in the last block, laid on the plane of patches: (B, H, h, w), each head adding up
    to 1 but for what the class token keeps for itself.

    Args:
        model: A model with a class token and attention; tokens may be dropped or merged before.
        batch: Images as the model sees them, (B, C, H, W).

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0)
    >>> attention_maps(model, torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 2, 4, 4])
    """
    attention, norm, block = _last_attention(model)
    with torch.no_grad(), watching(model.eval()) as watch:
        model(batch)
    features = next(each for each in reversed(watch.features) if each.block is block)
    tokens, sizes = features.inputs.split([block.dim, features.inputs.shape[-1] - block.dim], -1)
    q, k, _ = project(attention, norm(tokens))  # (B, H, N, d)
    logits = (q[:, :, :1] @ k.mT * k.shape[-1] ** -0.5)[:, :, 0]  # (B, H, N)
    weights = (logits + sizes.log().sum(-1)[:, None]).softmax(-1)  # a token that stands for s patches counts s times
    return torch.stack([features.plane(head) for head in weights.float().unbind(1)], 1)  # (B, H, h, w)


def attention(model: nn.Module, images: Picture | Sequence[Picture]) -> Figure:
    """Where the class token looks in the last block: the mean over heads, and each head.

    Args:
        model: A model with a class token, with a head or without.
        images: Files, PIL images or tensors.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=0)
    >>> attention(model, torch.zeros(1, 3, 32, 32)).summary.splitlines()[0]
    'Attention of the class token of vit in its last block, 2 heads.'
    """
    batch = as_batch(model, images)
    maps = attention_maps(model, batch)  # (B, H, h, w)
    heads, shown = maps.shape[1], pictures(model, batch)
    drawn = torch.cat([maps.mean(1, keepdim=True), maps[:, :MOST_HEADS]], 1)  # (B, 1 + H, h, w)
    plot, axes = panels(len(batch), drawn.shape[1] + 1)
    lines = [f"Attention of the class token of {named(model)} in its last block, {heads} heads."]
    for row, picture in enumerate(shown):
        axes[row, 0].imshow(picture)
        over = enlarged(drawn[row], picture.shape[:2], "nearest")
        for column, each in enumerate(over, 1):
            axes[row, column].imshow(each, cmap=AMOUNTS, vmin=0, vmax=max(each.max(), 1e-12))
        lines.append(f"image {row + 1}: {where(drawn[row, 0])}")
    for column, title in enumerate(["input", "all heads", *(f"head {n + 1}" for n in range(drawn.shape[1] - 1))]):
        axes[0, column].set_title(title)
    return Figure(plot, "\n".join(lines))


def _last_attention(model: nn.Module) -> tuple[Attention, nn.Module, Block]:
    """The last block's attention and what normalises its input; refuses models without a class token."""
    blocks = blocks_of(model)
    block = next(reversed(blocks.values())) if blocks else None
    if block is None or block.grid is None or block.grid.prefix == 0:
        raise ValueError(f"{named(model)} has no class token, so there is no attention of it to show; try grad-cam")
    found = [module for module in block.mix.modules() if isinstance(module, Attention)]
    norm = getattr(block.mix, "norm", None)
    if not found or not isinstance(norm, nn.Module):
        raise ValueError(f"the last block of {named(model)} does not mix tokens by attention; try grad-cam")
    return found[0], norm, block
