"""Effective receptive field: which pixels move the features in the middle (Figure 4 of Wang et al., CVPR 2023).

    field = Σ over images and colours of relu(∂ Σ_c y_c(centre) / ∂ pixel)        y: the last block's output

B images, C channels, H x W pixels, h x w the last plane.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from .figure import AMOUNTS, Figure, panels
from .images import Picture, as_batch, named
from .places import Features, channels_last, watching

SHARES = (0.2, 0.5, 0.9)
FLOOR = 1e-4
"""Amounts below this share of the highest are drawn as nothing."""


def effective_field(model: nn.Module, batch: Tensor) -> Tensor:
    """How much each pixel moves the features in the middle of the last plane, (H, W), 1 at the most.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
    >>> effective_field(model, torch.rand(1, 3, 32, 32)).shape
    torch.Size([32, 32])
    """
    total = torch.zeros(batch.shape[2:])
    for image in batch.split(1):
        with torch.enable_grad(), watching(model.eval()) as watch:
            pixels = image.detach().requires_grad_()
            model(pixels)
            middle = _middle(watch.features[-1])
        if middle is not None:
            (gradient,) = torch.autograd.grad(middle, pixels)
            total += gradient[0].relu().sum(0).float().cpu()  # (H, W)
    if not total.max() > 0:
        raise ValueError(f"{named(model)} dropped the middle of every image before its last block; give other images")
    return total / total.max()


def receptive_field(models: nn.Module | Mapping[str, nn.Module], images: Picture | Sequence[Picture]) -> Figure:
    """The effective receptive field of one model, or of several by name side by side, summed over images.

    The text says how large a square in the middle holds a fifth, half and nine tenths of it.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
    >>> receptive_field(model, torch.rand(1, 3, 32, 32)).summary.splitlines()[0]
    'Effective receptive fields: which pixels move the features in the middle, from 1 image.'
    """
    named_models = dict(models) if isinstance(models, Mapping) else {named(models): models}
    plot, axes = panels(1, len(named_models), size=3.0, wider=1.1, higher=0.5)
    lines: list[str] = []
    for axis, (name, model) in zip(axes[0], named_models.items()):
        batch = as_batch(model, images)
        if not lines:
            several = "s" if len(batch) > 1 else ""
            lines.append(
                "Effective receptive fields: which pixels move the features in the middle, "
                f"from {len(batch)} image{several}."
            )
        field = effective_field(model, batch)
        shown = (field.clamp_min(FLOOR).log10() / -torch.tensor(FLOOR).log10()) + 1  # 0 at FLOOR, 1 at the most
        axis.imshow(shown.numpy(), cmap=AMOUNTS, vmin=0, vmax=1)
        sides = [square(field, share) for share in SHARES]
        axis.set_title(f"{name}\nhalf within {sides[1]} px of {field.shape[0]}")
        told = ", ".join(f"{share:.0%} within {side} x {side} px" for share, side in zip(SHARES, sides))
        lines.append(f"{name} on {field.shape[0]} x {field.shape[1]} px: {told}")
    bar = plot.colorbar(axes[0, -1].images[0], ax=axes, shrink=0.8, ticks=[0, 0.25, 0.5, 0.75, 1])
    bar.ax.set_yticklabels(["≤ 0.0001", "0.001", "0.01", "0.1", "1"])
    bar.set_label("share of the highest (log scale)")
    return Figure(plot, "\n".join(lines))


def square(field: Tensor, share: float) -> int:
    """The side of the smallest square around the middle that holds a share of a field (H, W).

    >>> square(torch.ones(10, 10), 0.25)
    6
    """
    height, width = field.shape
    wanted = share * field.sum().item() * (1 - 1e-6)
    for radius in range(1, (max(height, width) + 1) // 2):
        rows = slice(max(0, height // 2 - radius), height // 2 + radius)
        columns = slice(max(0, width // 2 - radius), width // 2 + radius)
        if field[rows, columns].sum().item() >= wanted:
            return 2 * radius
    return max(height, width)


def _middle(features: Features) -> Tensor | None:
    """The features at the middle of the plane, summed; None where no token stands for it."""
    assert features.output is not None
    y = channels_last(features.output, features.block).sum(-1)  # (1, prefix + N) or (1, h, w)
    if y.ndim == 2:
        y = y[:, features.prefix :]  # (1, N)
        grid = features.block.grid
        assert grid is not None
        size = grid.size
        centre = size[0] // 2 * size[1] + size[1] // 2
        if features.places_after is None:
            return y[0, centre]
        share = features.places_after[0, :, centre].to(y)  # (N,)
        return (y[0] * share).sum() / share.sum() if share.sum() > 0 else None
    return y[0, y.shape[1] // 2, y.shape[2] // 2]
