"""Which patches a lean model looks at: the tokens that are kept, and the weights by which tokens are mixed.

B images, K kept tokens, H x W the plane of patches.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..core import FUSED, Decision, blocks_of, kept_patches, reducers, traced
from .figure import AMOUNTS, COLOURS, Figure, panels
from .images import Picture, as_batch, enlarged, named, pictures, where

FADED = 0.15
"""How much of a dropped patch still shows through the white."""


def kept_tokens(model: nn.Module, images: Picture | Sequence[Picture]) -> Figure:
    """The patches that are left behind each place where a model drops tokens; the others fade.

    A fused token stands for many patches and for none of them in particular, so it is counted and not drawn.
    """
    model = model.eval()
    batch = as_batch(model, images)
    history = kept_patches(model, batch)
    size = _plane(model)
    names = [f"block {number}" for number in _numbers(model, [path.rsplit(".", 1)[0] for path in reducers(model)])]
    masks = [_mask(patches, size) for patches in history]  # (B, H, W) each
    shown = pictures(model, batch)
    plot, axes = panels(len(batch), len(masks) + 1)
    lines = []
    for row, picture in enumerate(shown):
        axes[row, 0].imshow(picture)
        for column, mask in enumerate(masks, 1):
            share = enlarged(mask, picture.shape[:2], "nearest")[row, :, :, None]
            axes[row, column].imshow(picture * share + (1 - share) * (1 - FADED + FADED * picture))
            if 0 < share.mean() < 1:
                axes[row, column].contour(share[:, :, 0], [0.5], colors=COLOURS[1], linewidths=0.8)
    axes[0, 0].set_title("input")
    lines.append(f"Patches kept by {named(model)} on {len(batch)} image{'s' if len(batch) > 1 else ''}.")
    for column, (name, mask, patches) in enumerate(zip(names, masks, history), 1):
        kept, every = int(mask[0].sum()), mask[0].numel()
        axes[0, column].set_title(f"{name}: {kept}/{every}")
        fused = " and a fused token" if (patches[0] == FUSED).any() else ""
        lines.append(f"after {name}: {kept} of {every} patches ({kept / every:.0%}){fused}")
    for row, mask in enumerate(masks[-1] if masks else ()):
        lines.append(f"image {row + 1}: the last patches lie {where(mask)}")
    return Figure(plot, "\n".join(lines))


def slimming(model: nn.Module, images: Picture | Sequence[Picture]) -> Figure:
    """How much each patch gives to the tokens that are left after each slimming, 1 being an equal share."""
    model = model.eval()
    batch = as_batch(model, images)
    soft = [path for path, reducer in reducers(model).items() if not isinstance(reducer.decision, Decision)]
    if not soft:
        raise ValueError(
            "no method in this model mixes tokens by weights: no slimming to show; kept_tokens shows what is left"
        )
    rows = dict(zip(reducers(model), traced(model, batch)))
    maps = [rows[path].unflatten(2, _plane(model)) for path in soft]  # (B, N̂, H, W) each
    shares = [given.sum(1) / given.sum(1).mean((1, 2), keepdim=True) for given in maps]  # (B, H, W), mean 1
    names = [f"before block {number}" for number in _numbers(model, [path.rsplit(".", 1)[0] for path in soft])]
    shown = pictures(model, batch)
    plot, axes = panels(len(batch), len(maps) + 1, higher=1.1)
    high = max(2.0, float(np.quantile(torch.stack(shares).cpu().numpy(), 0.995)))
    for row, picture in enumerate(shown):
        axes[row, 0].imshow(picture)
        for column, share in enumerate(shares, 1):
            axes[row, column].imshow(picture.mean(2), cmap="gray", vmin=0, vmax=1)
            over = enlarged(share, picture.shape[:2])[row]
            axes[row, column].imshow(over, cmap=AMOUNTS, vmin=0, vmax=high, alpha=0.65)
    axes[0, 0].set_title("input")
    plural = "s" if len(batch) > 1 else ""
    lines = [f"Token slimming by {named(model)} on {len(batch)} image{plural}: 1 is an equal share of every patch."]
    for column, (name, given, share) in enumerate(zip(names, maps, shares), 1):
        axes[0, column].set_title(f"{name}:\n{given.shape[1]} tokens")
        lines.append(
            f"{name}: {given.shape[1]} tokens for {given.shape[2] * given.shape[3]} patches, "
            f"shares from {share.min():.2f} to {share.max():.2f}"
        )
    for row in range(len(batch)):
        lines.append(f"image {row + 1}: the last tokens come from {where(shares[-1][row])}")
    bar = plot.colorbar(axes[0, -1].images[-1], ax=axes, shrink=0.6, aspect=30, location="bottom", pad=0.02)
    bar.set_label("contribution of a patch (1 = equal share)")
    bar.solids.set_alpha(1)  # type: ignore[union-attr]
    return Figure(plot, "\n".join(lines))


def _mask(patches: Tensor, size: tuple[int, int]) -> Tensor:
    """Ones where patches (B, K) are, on the plane (B, H, W); what stands for fused tokens is left out."""
    mask = patches.new_zeros(len(patches), size[0] * size[1] + 1, dtype=torch.float32)
    places = torch.where(patches == FUSED, size[0] * size[1], patches)  # one place beyond the plane
    return mask.scatter(1, places, 1.0)[:, :-1].unflatten(1, size)


def _plane(model: nn.Module) -> tuple[int, int]:
    grid = next(iter(blocks_of(model).values())).grid
    assert grid is not None
    return grid.size


def _numbers(model: nn.Module, paths: list[str]) -> list[int]:
    """The blocks at these paths, counted from 1 as in the papers."""
    order = list(blocks_of(model))
    return [order.index(path) + 1 for path in paths]
