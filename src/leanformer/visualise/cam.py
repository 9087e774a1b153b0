"""Grad-CAM: where on the image the evidence for a class lies (Selvaraju et al., 2017), for any model of ours or timm's.

    w_c = mean over places of ∂logit/∂x_c,    map = relu(Σ_c w_c x_c)        x: the input of the last token mixer

The last mixer whose patches still move the logit is taken: behind it a class token hears the patches no more. Maps of
models with fewer tokens are laid back onto the plane of patches. Of a model without our blocks, such as a CNN, the last
feature level that moves the logit is taken: `layer4` of a ResNet.

B images, C channels, h x w the plane of the last stage.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core import blocks_of, classes_of, taps
from ..layers.layout import to_plane
from ..layers.levels import levels_of
from .figure import AMOUNTS, Figure, panels
from .images import Picture, as_batch, enlarged, named, pictures, where
from .names import class_name
from .places import Features, channels_last, watching


def grad_cam_maps(model: nn.Module, batch: Tensor, target: int | None = None) -> tuple[Tensor, Tensor, bool]:
    """Maps (B, h, w) between 0 and 1, the classes (B,) they speak of, and whether tokens had been taken away.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5)
    >>> grad_cam_maps(model, torch.zeros(2, 3, 32, 32), target=3)[0].shape
    torch.Size([2, 4, 4])
    """
    if not blocks_of(model):
        return *_of_levels(model, batch, target), False
    with torch.enable_grad(), watching(model.eval()) as watch:
        chosen, classes = _chosen(model(batch.detach().requires_grad_()), target)
        inputs = [each.inputs for each in watch.features]
        gradients = torch.autograd.grad(chosen, inputs, allow_unused=True)
    for features, gradient in reversed(list(zip(watch.features, gradients))):
        if gradient is not None and _patches(features, gradient).abs().sum() > 0:
            maps = _map(features, gradient)
            return maps, classes, features.places is not None
    raise ValueError(f"no patch moves the logits of {named(model)}: there is nothing to map")


def _chosen(output: Tensor | tuple[Tensor, ...], target: int | None) -> tuple[Tensor, Tensor]:
    """The sum of the logits that are explained, and of which class each image's is, (B,)."""
    logits = output if isinstance(output, Tensor) else output[0]  # the class logits come first
    if target is not None and not 0 <= target < logits.shape[1]:
        raise ValueError(f"class {target} does not exist; this model has classes 0 to {logits.shape[1] - 1}")
    classes = logits.argmax(1) if target is None else torch.full((len(logits),), target, device=logits.device)
    return logits.gather(1, classes[:, None]).sum(), classes


def _of_levels(model: nn.Module, batch: Tensor, target: int | None) -> tuple[Tensor, Tensor]:
    """Maps (B, h, w) and classes (B,) of a model of timm's without our blocks, from its feature levels."""
    levels = levels_of(model)
    with torch.enable_grad(), taps(model.eval(), [level.path for level in levels]) as seen:
        chosen, classes = _chosen(model(batch.detach().requires_grad_()), target)
        found = [seen[level.path] for level in levels]
        gradients = torch.autograd.grad(chosen, found, allow_unused=True)
    for level, x, gradient in reversed(list(zip(levels, found, gradients, strict=True))):
        if gradient is not None and gradient.abs().sum() > 0:
            plane, slope = (to_plane(t.detach().float(), level.layout, level.grid)[0] for t in (x, gradient))
            weights = slope.mean((2, 3), keepdim=True)  # (B, C, 1, 1)
            maps = (weights * plane).sum(1).relu()  # (B, h, w)
            return maps / maps.amax((1, 2), keepdim=True).clamp_min(1e-12), classes
    raise ValueError(f"no feature level moves the logits of {named(model)}: there is nothing to map")


def grad_cam(
    model: nn.Module,
    images: Picture | Sequence[Picture],
    target: int | None = None,
    classes: Sequence[str] | None = None,
) -> Figure:
    """Where the evidence for `target` lies, by default for the class that the model predicts.

    `classes` are names; by default those on the model's card, or ImageNet's for a model with 1000 classes.

    >>> import leanformer as lf
    >>> model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5)
    >>> grad_cam(model, torch.zeros(1, 3, 32, 32), target=3).summary.splitlines()[0]
    'Grad-CAM of vit: where the evidence for a class lies.'
    """
    batch = as_batch(model, images)
    maps, found, reduced = grad_cam_maps(model, batch, target)
    total = int(getattr(model, "num_classes", 0))
    shown = pictures(model, batch)
    plot, axes = panels(2, len(batch), size=2.4, wider=0.8)
    over = enlarged(maps, shown.shape[1:3], "nearest" if reduced else "bilinear")
    lines = [f"Grad-CAM of {named(model)}: where the evidence for a class lies."]
    for column, picture in enumerate(shown):
        name = class_name(int(found[column]), total, classes or classes_of(model))
        axes[0, column].imshow(picture)
        axes[0, column].set_title(name if len(name) < 28 else f"{name[:26]}…")
        axes[1, column].imshow(picture.mean(2), cmap="gray", vmin=0, vmax=1)
        axes[1, column].imshow(over[column], cmap=AMOUNTS, vmin=0, vmax=1, alpha=0.6)
        lines.append(f"image {column + 1}, {name}: {where(maps[column])}")
    bar = plot.colorbar(axes[1, 0].images[-1], ax=axes, shrink=0.4, aspect=15)
    bar.set_label("evidence")
    bar.solids.set_alpha(1)  # type: ignore[union-attr]
    return Figure(plot, "\n".join(lines))


def _patches(features: Features, x: Tensor) -> Tensor:
    return x[:, features.prefix :] if features.block.layout == "NLC" else x


def _map(features: Features, gradient: Tensor) -> Tensor:
    x, gradient = (channels_last(t.detach().float(), features.block) for t in (features.inputs, gradient))
    patches = _patches(features, gradient)
    weights = patches.flatten(1, -2).mean(1)  # (B, C)
    evidence = torch.einsum("b...c,bc->b...", x, weights).relu()  # (B, N) or (B, h, w)
    plane = features.plane(evidence)  # (B, h, w)
    return plane / plane.amax((1, 2), keepdim=True).clamp_min(1e-12)
