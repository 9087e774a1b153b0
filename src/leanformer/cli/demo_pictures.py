"""The demo's two pictures: accuracy against speed, and which patches are left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import torch
from torch import Tensor, nn

from ..core import kept_patches

if TYPE_CHECKING:
    from .demo_work import Line

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def trade_off_picture(backbone: Line, fast: Line, curve: list[Line], path: Path) -> None:
    """Top-1 against images a second: the backbone, the fused model, and the fused model at other keep rates."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    speeds, accuracies = [line.images_per_second for line in curve], [line.top1 for line in curve]
    axes.plot(speeds, accuracies, "o-", color="tab:blue", label="fused, other keep rates")
    for line in curve:
        axes.annotate(line.name, (line.images_per_second, line.top1), xytext=(4, 6), textcoords="offset points")
    for line, marker, colour in ((backbone, "s", "tab:gray"), (fast, "*", "tab:orange")):
        axes.plot(line.images_per_second, line.top1, marker, markersize=11, color=colour, label=line.name)
    axes.set(xlabel="images a second (CPU, batch 64)", ylabel="top-1 (%)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def kept_picture(
    model: nn.Module, images: Tensor, labels: Tensor, view: Callable[[nn.Module, Tensor], Tensor], path: Path
) -> None:
    """Each image in a column: as it is, and with the dropped patches dimmed after each place of token reduction."""
    seen = view(model, images)  # (n, 3, S, S)
    kept = kept_patches(model.eval(), seen)
    side = int(seen.shape[-1])
    grid = int(model.patch_embed.grid_size[0])  # type: ignore[union-attr, index]
    pictures = seen.mean(1)  # (n, S, S)
    rows, columns = len(kept) + 1, len(images)
    figure, axes = plt.subplots(rows, columns, figsize=(columns, rows + 0.2), layout="constrained")
    for column in range(columns):
        for row in range(rows):
            mask = torch.ones(grid * grid)
            if row:
                left = kept[row - 1][column]
                mask = torch.full((grid * grid,), 0.15).scatter(0, left[left >= 0], 1.0)
            plane = mask.view(1, 1, grid, grid)
            plane = nn.functional.interpolate(plane, (side, side), mode="nearest")[0, 0]
            low = pictures[column].min()
            axes[row, column].imshow((pictures[column] - low) * plane + low, cmap="gray", vmin=low)
            axes[row, column].set(xticks=[], yticks=[])
        axes[0, column].set_title(str(int(labels[column])))
    for row in range(rows):
        axes[row, 0].set_ylabel("image" if not row else f"place {row}")
    figure.savefig(path, dpi=110)
    plt.close(figure)
