"""Why tokens can go: a ViT on some of its patches, tokens that are alike, and where deep tokens look.

`removed_tokens`, `token_similarity` and `deep_attention` are first figures of papers on token reduction, for any ViT.
B images, N patches, C channels, H x W the plane of patches.
"""

from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import Attention
from torch import Tensor, nn

from ..core import Grid, blocks_of, classes_of, taps
from ..layers.attention import class_attention, project
from .figure import AMOUNTS, COLOURS, LINES, Figure, charts, panels
from .images import Picture, as_batch, enlarged, named, pictures
from .names import class_name

SIMILAR = 0.7
"""Correlation from which the paper calls two tokens similar."""
CROWDS = (4, 8, 16)
KEPT = 0.5
"""Share of the patches that `removed_tokens` leaves."""


def keep_tokens(model: nn.Module, batch: Tensor, kept: Tensor) -> Tensor:
    """Logits of a ViT whose blocks see some of the patches only.

    Args:
        model: a ViT.
        batch: images as the model sees them, (B, 3, height, width).
        kept: which patches are left, (B, K).
    """
    prefix = grid_of(model).prefix

    def drop(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = inputs[0]
        rows = (prefix + kept)[..., None].expand(-1, -1, x.shape[2])  # (B, K, C)
        return torch.cat([x[:, :prefix], x.gather(1, rows)], dim=1), *inputs[1:]  # (B, prefix + K, C)

    handle = next(iter(blocks_of(model).values())).register_forward_pre_hook(drop)
    try:
        with torch.no_grad():
            return model(batch)
    finally:
        handle.remove()


def class_scores(model: nn.Module, batch: Tensor) -> Tensor:
    """The class token's attention to each patch in the last block but two, (B, N)."""
    block = list(blocks_of(model))[-min(3, len(blocks_of(model)))]
    q, k = attention_inputs(model, batch, block)
    return class_attention(q, k)[:, grid_of(model).prefix :]


def attention_inputs(model: nn.Module, batch: Tensor, path: str) -> tuple[Tensor, Tensor]:
    """Queries and keys by head of one block, (B, heads, prefix + N, D) each."""
    mix: Any = blocks_of(model)[path].mix
    if not isinstance(getattr(mix, "fn", None), Attention):
        raise ValueError(f"{path} of {named(model)} has no attention to look at; take a ViT, a DeiT or an LV-ViT")
    with torch.no_grad(), taps(model, [f"{path}.mix.norm"]) as seen:
        model(batch)
        q, k, _ = project(mix.fn, seen[f"{path}.mix.norm"])
    return q, k


def grid_of(model: nn.Module) -> Grid:
    """The plane of patches of a ViT."""
    blocks = list(blocks_of(model).values())
    if not blocks or any(block.layout != "NLC" or block.grid is None or block.stage for block in blocks):
        raise ValueError(f"{named(model)} works on maps or windows; these figures are of sequences of tokens")
    grid = blocks[0].grid
    assert grid is not None
    return grid


def removed_tokens(model: nn.Module, images: Sequence[Picture]) -> Figure:
    """What a ViT answers on half of its patches: the attentive ones, random ones, the inattentive ones.

    Args:
        model: a trained ViT.
        images: pictures or files.
    """
    batch, grid = as_batch(model, images), grid_of(model)
    score = class_scores(model, batch)  # (B, N)
    count = max(1, round(KEPT * score.shape[1]))
    chance = torch.rand(score.shape, generator=torch.Generator().manual_seed(0)).to(score)
    every = torch.arange(score.shape[1], device=score.device).expand(len(batch), -1)
    ways = {
        "all patches": every,
        "inattentive removed": score.topk(count).indices,
        "removed at random": chance.topk(count).indices,
        "attentive removed": (-score).topk(count).indices,
    }
    shown, total = pictures(model, batch), int(getattr(model, "num_classes", 0))
    plot, axes = panels(len(batch), len(ways), higher=0.6)
    lines = [f"Answers of {named(model)} on {count} of {score.shape[1]} patches."]
    for column, (way, kept) in enumerate(ways.items()):
        sure, found = keep_tokens(model, batch, kept).softmax(-1).max(-1)
        mask = torch.zeros_like(score).scatter(1, kept, 1.0).unflatten(1, grid.size)  # (B, H, W)
        fine = enlarged(mask, shown.shape[1:3], "nearest")[..., None]
        for row, picture in enumerate(shown):
            name = class_name(int(found[row]), total, classes_of(model))
            axes[row, column].imshow(picture * fine[row] + (1 - fine[row]) * 0.85)
            axes[row, column].set_xlabel(f"{name[:20]} {sure[row]:.0%}", fontsize=8)
            lines.append(f"image {row + 1}, {way}: {name} {sure[row]:.0%}")
        axes[0, column].set_title(way)
    return Figure(plot, "\n".join(lines))


def correlations(tokens: Tensor) -> Tensor:
    """Correlation coefficients among tokens (B, N, C), over their channels: (B, N, N).

    >>> correlations(torch.tensor([[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]])).round()
    tensor([[[1., 1.],
             [1., 1.]]])
    """
    centred = tokens - tokens.mean(-1, keepdim=True)
    unit = centred / centred.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    return unit @ unit.mT


def similar_shares(model: nn.Module, batch: Tensor) -> dict[int, list[float]]:
    """For crowds of 4, 8 and 16: the share of a block's tokens that are similar to so many others, block by block."""
    grid = grid_of(model)
    with torch.no_grad(), taps(model, blocks_of(model)) as seen:
        model(batch)
    shares: dict[int, list[float]] = {crowd: [] for crowd in CROWDS}
    for path in blocks_of(model):
        close = correlations(seen[path][:, grid.prefix :].float()) >= SIMILAR  # (B, N, N)
        others = close.sum(-1) - 1  # each is like itself
        for crowd in CROWDS:
            shares[crowd].append(float((others >= crowd).float().mean()))
    return shares


def token_similarity(model: nn.Module, images: Sequence[Picture]) -> Figure:
    """The share of tokens that are similar (correlation from 0.7) to at least 4, 8 and 16 others, by depth.

    Args:
        model: a trained ViT.
        images: pictures or files.
    """
    shares = similar_shares(model, as_batch(model, images))
    plot, (axis,) = charts(1, 4.5, 3.0)
    lines = [f"Tokens of {named(model)} that are similar to others, {len(images)} images."]
    for index, (crowd, values) in enumerate(shares.items()):
        axis.plot(range(1, len(values) + 1), values, LINES[index], color=COLOURS[index], label=f"to {crowd} tokens")
        lines.append(f"to at least {crowd} tokens: {', '.join(f'{value:.0%}' for value in values)}, block by block")
    axis.set(xlabel="block", ylabel="share of tokens", ylim=(0, 1.02))
    axis.legend(frameon=False)
    return Figure(plot, "\n".join(lines))


def deep_attention(model: nn.Module, images: Sequence[Picture]) -> Figure:
    """The attention of two tokens of a block at five sixths of the depth, the tenth of twelve.

    Args:
        model: a trained ViT.
        images: pictures or files.
    """
    batch, grid = as_batch(model, images), grid_of(model)
    paths = list(blocks_of(model))
    path = paths[max(0, round(len(paths) * 5 / 6) - 1)]
    q, k = attention_inputs(model, batch, path)
    maps = (q.float() @ k.float().mT * k.shape[-1] ** -0.5).softmax(-1).mean(1)  # (B, prefix + N, prefix + N)
    patches = grid.size[0] * grid.size[1]
    chosen = torch.randperm(patches, generator=torch.Generator().manual_seed(0))[:2].tolist()
    shown = pictures(model, batch)
    plot, axes = panels(len(batch), 3, higher=0.4)
    lines = [f"Where two tokens of {path} of {named(model)} look."]
    for row, picture in enumerate(shown):
        axes[row, 0].imshow(picture)
        seen = [
            maps[row, grid.prefix + token, grid.prefix :].unflatten(0, grid.size) for token in chosen
        ]  # (H, W) each
        for column, (token, plane) in enumerate(zip(chosen, seen, strict=True), 1):
            axes[row, column].imshow(enlarged(plane[None], picture.shape[:2])[0], cmap=AMOUNTS)
            axes[row, column].set_title(f"token {token}")
        alike = float(correlations(torch.stack([plane.flatten() for plane in seen])[None])[0, 0, 1])
        lines.append(f"image {row + 1}: the two maps have a correlation of {alike:.2f}")
    return Figure(plot, "\n".join(lines))
