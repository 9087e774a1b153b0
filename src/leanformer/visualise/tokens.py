"""Which patches a lean model looks at: the tokens that are kept, and the weights by which tokens are mixed.

B images, M tokens, P = H x W the plane of patches.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.collections import LineCollection
from torch import Tensor, nn

from ..core import FUSED, Decision, blocks_of, reducers, traced
from .figure import AMOUNTS, COLOURS, Figure, panels
from .images import Picture, as_batch, enlarged, named, pictures, where

FADED = 0.15
"""How much of a dropped patch still shows through the white."""


def kept_tokens(model: nn.Module, images: Picture | Sequence[Picture]) -> Figure:
    """The tokens that are left behind each place where a model drops or merges some.

    What was dropped fades. Patches that were merged have the mean colour of all that their token stands for, within its
    outline. A fused rest stands for many patches and for none of them in particular, so it is told and not drawn.
    """
    model = model.eval()
    batch = as_batch(model, images)
    size = _plane(model)
    places = _fewer(dict(zip(reducers(model), traced(model, batch), strict=True)))
    names = [f"block {number}" for number in _numbers(model, [path.rsplit(".", 1)[0] for path in places])]
    history = list(places.values())
    owners = [token_of_patch(rows).unflatten(1, size) for rows in history]  # (B, H, W) each
    shown = pictures(model, batch)
    plot, axes = panels(len(batch), len(owners) + 1)
    for row, picture in enumerate(shown):
        axes[row, 0].imshow(picture)
        for column, owner in enumerate(owners, 1):
            _draw(axes[row, column], picture, owner[row].cpu().numpy())
    axes[0, 0].set_title("input")
    lines = [f"Patches kept by {named(model)} on {len(batch)} image{'s' if len(batch) > 1 else ''}."]
    for column, (name, rows, owner) in enumerate(zip(names, history, owners), 1):
        axes[0, column].set_title(f"{name}: {len(owner[0][owner[0] != FUSED].unique())}/{owner[0].numel()}")
        lines.append(f"after {name}: {_told(rows[0], owner[0])}")
    for row, owner in enumerate(owners[-1] if owners else ()):
        lines.append(f"image {row + 1}: the last single patches lie {where((_patches_with(owner) == 1).float())}")
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


def _fewer(places: dict[str, Tensor]) -> dict[str, Tensor]:
    """The places behind which there are fewer tokens than before, of rows (B, M, P) each; all, if there is none."""
    counts = [rows.shape[1] for rows in places.values()]
    before = [rows.shape[2] for rows in places.values()][:1] + counts[:-1]
    found = {path: rows for (path, rows), now, was in zip(places.items(), counts, before) if now < was}
    return found or places


def token_of_patch(rows: Tensor) -> Tensor:
    """Which token stands for each patch, (B, P) from rows (B, M, P); FUSED for a patch that none stands for wholly.

    Args:
        rows: how much of each patch a token stands for.

    >>> token_of_patch(torch.tensor([[[0.0, 1.0, 1.0, 0.0], [0.5, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0]]]))
    tensor([[-1,  0,  0, -1]])
    """
    whole = rows == 1
    return torch.where(whole.any(1), whole.int().argmax(1), FUSED)


def _patches_with(owner: Tensor) -> Tensor:
    """For each patch how many patches its token stands for, itself among them; 0 where there is no token."""
    _, place, counts = owner.unique(return_inverse=True, return_counts=True)
    return torch.where(owner == FUSED, 0, counts[place])


def _draw(axes: Any, picture: np.ndarray, owner: np.ndarray) -> None:
    """A picture (H, W, 3) as its tokens are, by the token of each patch (h, w)."""
    together = _patches_with(torch.from_numpy(owner)).numpy()
    wide = [enlarged(torch.from_numpy(each)[None], picture.shape[:2], "nearest")[0] for each in (owner, together)]
    number, many = wide[0].astype(int) - FUSED, wide[1][:, :, None]  # tokens counted from 1
    pixels = np.maximum(np.bincount(number.ravel()), 1)
    colours = [np.bincount(number.ravel(), weights=channel.ravel()) / pixels for channel in picture.transpose(2, 0, 1)]
    mean = np.stack([colour[number] for colour in colours], axis=2)
    axes.imshow(np.where(many == 0, 1 - FADED + FADED * picture, np.where(many > 1, mean, picture)))
    lines = _outlines(owner, together != 1, picture.shape[0] / owner.shape[0], picture.shape[1] / owner.shape[1])
    axes.add_collection(LineCollection(lines, colors=COLOURS[1], linewidths=0.8))


def _outlines(owner: np.ndarray, unlike: np.ndarray, high: float, wide: float) -> list[list[tuple[float, float]]]:
    """Edges, in pixels, between patches of different tokens, but for those between two that were left alone."""
    down = (owner[1:] != owner[:-1]) & (unlike[1:] | unlike[:-1])
    across = (owner[:, 1:] != owner[:, :-1]) & (unlike[:, 1:] | unlike[:, :-1])
    edges = [((x, y + 1), (x + 1, y + 1)) for y, x in zip(*down.nonzero())]
    edges += [((x + 1, y), (x + 1, y + 1)) for y, x in zip(*across.nonzero())]
    return [[(x * wide - 0.5, y * high - 0.5) for x, y in edge] for edge in edges]


def _told(rows: Tensor, owner: Tensor) -> str:
    """What is left of one image, from the rows (M, P) of its tokens and the token of each patch (H, W)."""
    together, every = _patches_with(owner), owner.numel()
    alone = int((together == 1).sum())
    fused = " and a fused token" if (rows.sum(1) == 0).any() else ""
    if together.max() <= 1:
        return f"{alone} of {every} patches ({alone / every:.0%}){fused}"
    tokens = len(owner[owner != FUSED].unique())
    return (
        f"{tokens} tokens for {every} patches ({tokens / every:.0%}){fused}; {alone} stand for one patch, the largest "
        f"for {int(together.max())}"
    )


def _plane(model: nn.Module) -> tuple[int, int]:
    grid = next(iter(blocks_of(model).values())).grid
    assert grid is not None
    return grid.size


def _numbers(model: nn.Module, paths: list[str]) -> list[int]:
    """The blocks at these paths, counted from 1 as in the papers."""
    order = list(blocks_of(model))
    return [order.index(path) + 1 for path in paths]
