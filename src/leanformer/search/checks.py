"""What `lean` refuses before any work: one line each that says what was found and what would work."""

import torch
from torch import nn

from ..core import card_of, check_whole
from ..data.kinds import Arrays, Data, Files
from ..data.sources import check_channels
from ..export import TARGETS
from ..train import Recipe
from .clock import Place

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BATCH = {"cuda": 256}
"""Images at a time by kind of device, where the user does not say; 8 elsewhere."""


def place_of(device: str | None, batch: int | None, dtype: str | None) -> Place:
    """Where the model will run, tried out.

    Args:
        device: cpu, cuda, …; the fastest there is by default.
        batch: images at a time; 256 on a GPU and 8 on a CPU by default.
        dtype: float32, bfloat16 or float16; bfloat16 on a GPU and float32 on a CPU by default.
    """
    where = _device(device)
    if batch is not None and batch < 1:
        raise ValueError(f"batch is {batch}; give a number of images, 1 or more")
    kind = dtype or ("bfloat16" if where.type == "cuda" else "float32")
    if kind not in DTYPES:
        raise ValueError(f"unknown dtype '{dtype}'; known: {', '.join(DTYPES)}")
    return Place(where, batch or BATCH.get(where.type, 8), DTYPES[kind])


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1).item()
    except Exception as error:  # each kind of device says in its own way that it is not there
        raise ValueError(f"there is no device '{name}' here; give device='cpu', or one that is there") from error
    return device


def check_model(model: nn.Module) -> None:
    """Refuse a model that lean cannot start from.

    Args:
        model: what was given.
    """
    card = card_of(model)
    if card.optimised is not None:
        raise ValueError("this model is optimised already; lean starts from the trained model before lf.fuse")
    if card.fused:
        raise ValueError("this model is fused already; lean starts from the trained model before lf.fuse")
    if card.methods:
        raise ValueError(f"{card.methods[0].name} is on this model already; lean starts from the plain backbone")
    check_whole(model)
    if next(model.parameters()).dtype == torch.float64:
        raise ValueError("the weights of the model are torch.float64, and images come in float32; give model.float()")
    if getattr(model, "num_classes", 0) == 1:
        raise ValueError(
            "the model has one class, which is all of every answer, so that no plan would lose anything; give a model "
            "of several classes, or its backbone without a head (num_classes=0)"
        )
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"the model is damaged: its weight {name} has values that are not finite")


def check_classes(data: Data) -> None:
    """Refuse labelled images that are all of one class: nothing could be told from them.

    Args:
        data: images with labels or without.
    """
    if not data.labelled:
        return
    if isinstance(data, Arrays):
        classes = data.labels.unique().numel()
    elif isinstance(data, Files) and hasattr(data.reader, "samples"):
        classes = len({label for _, label in data.reader.samples})
    else:
        return
    if classes < 2:
        raise ValueError(
            f"all images of {data.name} are of one class, by which no model can be judged; give several classes, or "
            "images:FOLDER for images without labels"
        )


def check_training(model: nn.Module, data: Data, recipe: Recipe | None) -> None:
    """Refuse images that the model does not take, and a recipe whose batch is more than all of them.

    Args:
        model: what was given.
        data: images for training; their labels do not count.
        recipe: of the distillation; None for the default one, which fits any number of images.
    """
    check_channels(model, data)
    if recipe is not None and recipe.batch_size > len(data):
        raise ValueError(
            f"a batch of {recipe.batch_size} is more than the {len(data)} images that are left to train on; give a "
            "recipe with a smaller batch_size"
        )


def check_export(format: str | None, output: object) -> None:
    """Refuse an export that cannot be written.

    Args:
        format: what was asked for; None for no export.
        output: the output folder; None: there is no place for a file.
    """
    if format is None:
        return
    if format not in TARGETS:
        raise ValueError(f"unknown format '{format}' to export to; known: {', '.join(TARGETS)}")
    if output is None:
        raise ValueError("an export is written beside the checkpoint; give an output folder")
    TARGETS[format].require()
