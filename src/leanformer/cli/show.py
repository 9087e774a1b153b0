"""leanformer show: one picture that explains a model or a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from .checks import check_picture, input_files
from .common import AS_NAMED, Build, Built, Model, describes_itself, open_model, parse_arguments, short_names

if TYPE_CHECKING:
    from .. import visualise

Kinds = Literal[
    "kept",
    "slimming",
    "grad-cam",
    "attention",
    "receptive-field",
    "features",
    "boxes",
    "masks",
    "label-map",
    "trade-off",
    "latency",
]
Kind = Annotated[Kinds, tyro.conf.Positional, tyro.conf.arg(metavar="KIND")]
CHARTS = {"trade-off": "trade_off", "latency": "latency_breakdown"}
"""Pictures of a result file, with the functions of `visualise` that draw them."""


def show(
    kind: Kind,
    model: Model,
    image: tuple[Path, ...] = (),
    output: Path | None = None,
    built: Built = AS_NAMED,
    versus: str | None = None,
    target: int | None = None,
    fused: bool = False,
) -> None:
    """Draw one figure, write it as PNG or SVG, and print what it shows in words.

    kept: the patches that a model keeps where it drops or merges tokens. slimming: what patches give to the tokens
    that they are slimmed to. grad-cam: where the evidence for a class lies. attention: where the class token looks,
    head by head, as in a backbone that DINO trained. receptive-field: which pixels the middle depends on. features:
    how feature values are spread, beside those of another model. boxes, masks, label-map: what a detector or a
    segmenter finds. trade-off and latency: charts of a result file.

    Example: leanformer show kept vit_tiny_patch16_224 --apply {tokens} --image dog.jpg --output kept.png

    Args:
        kind: kept, slimming, grad-cam, attention, receptive-field, features, boxes, masks, label-map,
            trade-off or latency.
        model: A model's name or a leanformer checkpoint, for grad-cam any of timm's, such as resnet50; for trade-off
            and latency a result file.
        image: One or more image files.
        output: The file to write, .png or .svg; by default the kind's name as PNG.
        built: Methods, weights and arguments.
        versus: For features and receptive-field, a second model; by default the same model without the methods.
        target: For grad-cam, the class; by default the one that the model predicts.
        fused: Fuse the model first.
    """
    from .. import visualise
    from ..core import fuse
    from ..measure.results import read_rows
    from ..measure.terminal import console

    check_picture(output or Path(f"{kind}.png"))
    input_files(image=image)
    if kind in CHARTS:
        figure = getattr(visualise, CHARTS[kind])(read_rows(model))
    else:
        if not image:
            raise ValueError(f"'{kind}' needs images: give --image FILE, one or more")
        opened = _open(kind, model, built)
        opened = fuse(opened) if fused else opened
        other = None
        if versus is not None or built.methods:
            rival = versus or model
            weights = built.checkpoint if rival == model else None
            arguments = () if rival != model and describes_itself(rival) else built.arguments
            other = open_model(rival, (), weights, arguments)
        models = [opened] if other is None else [opened, other]
        names = [visualise.named(each) for each in models]
        if len(set(names)) < len(names):  # of one architecture, so their files tell them apart
            names = short_names([model, versus or model])
        figure = _draw(kind, models, names, list(image), target)
    written = figure.save(output or Path(f"{kind}.png"))
    console().print(figure.summary, highlight=False, markup=False)
    console().print(f"wrote {written}")


def _open(kind: str, model: str, built: Build) -> Any:
    """The model; for grad-cam also one of timm's that has no blocks for methods, such as a ResNet."""
    if kind != "grad-cam" or built.methods or Path(model).suffix == ".safetensors":
        return built.open(model)
    from ..backbones import create_teacher

    return create_teacher(model, built.checkpoint, **parse_arguments(built.arguments))


def _draw(kind: str, models: list[Any], names: list[str], images: list[Any], target: int | None) -> visualise.Figure:
    from .. import visualise

    model = models[0]
    if kind == "kept":
        return visualise.kept_tokens(model, images)
    if kind == "slimming":
        return visualise.slimming(model, images)
    if kind in ("boxes", "masks", "label-map"):
        return visualise.predictions(model, images, kind)  # type: ignore[arg-type]
    if kind == "grad-cam":
        return visualise.grad_cam(model, images, target)
    if kind == "attention":
        return visualise.attention(model, images)
    if kind == "receptive-field":
        return visualise.receptive_field(dict(zip(names, models)), images)
    if len(models) < 2:
        raise ValueError("features compares two models: give --versus MODEL, or methods with --apply")
    return visualise.feature_distributions(models[1], model, images, names=(names[1], names[0]))
