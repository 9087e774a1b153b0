"""What a detector or a segmenter finds: boxes, masks or label maps over the pictures."""

from collections.abc import Sequence
from typing import Literal

from PIL import Image
from torch import Tensor, nn

from ..core import classes_of
from ..tasks.detection import detect
from ..tasks.drawing import colour_of, draw_map, draw_objects
from ..tasks.fitting import task_of
from ..tasks.segmentation import segment
from .figure import Figure, panels
from .images import File, named, upright

Kind = Literal["boxes", "masks", "label-map"]
TASKS = {"boxes": "detection", "masks": "detection", "label-map": "segmentation"}


def predictions(model: nn.Module, images: Sequence[File], kind: Kind = "boxes", least: float = 0.5) -> Figure:
    """Pictures beside what the model finds in them.

    Args:
        model: A detector for boxes and masks, a segmenter for label maps.
        images: Files, or pictures of Pillow.
        kind: boxes, masks or label-map.
        least: The least score of what is shown.
    """
    if task_of(model).name != TASKS[kind]:
        raise ValueError(
            f"{kind} are shown of a model for {TASKS[kind]}; {named(model)} is made for {task_of(model).name}"
        )
    pictures = [upright(image).convert("RGB") for image in images]
    if kind == "label-map":
        drawn, words = _maps(model, pictures)
    else:
        drawn, words = _objects(model, pictures, kind, least)
    plot, axes = panels(len(pictures), 2, size=3.2)
    for row, (picture, answer) in enumerate(zip(pictures, drawn)):
        axes[row, 0].imshow(picture)
        axes[row, 1].imshow(answer)
    axes[0, 0].set_title("picture")
    axes[0, 1].set_title(kind)
    return Figure(plot, "\n".join([f"{kind} that {named(model)} finds", *words]))


def _objects(
    model: nn.Module, pictures: list[Image.Image], kind: Kind, least: float
) -> tuple[list[Image.Image], list[str]]:
    classes, drawn, words = classes_of(model), [], []
    for index, (picture, (found, scores)) in enumerate(zip(pictures, detect(model, pictures, least)), 1):
        if kind == "masks" and found.masks is None:
            raise ValueError(f"{named(model)} finds boxes alone, no masks")
        masks = found.masks if kind == "masks" else None
        drawn.append(draw_objects(picture, found.boxes, found.labels, classes, scores, masks))
        each = [f"{_name(label, classes)} {score:.2f}" for label, score in zip(found.labels, scores)]
        words.append(f"picture {index}: {', '.join(each) or 'nothing'}")
    return drawn, words


def _maps(model: nn.Module, pictures: list[Image.Image]) -> tuple[list[Image.Image], list[str]]:
    classes, drawn, words = classes_of(model), [], []
    for index, (picture, found) in enumerate(zip(pictures, segment(model, pictures)), 1):
        drawn.append(draw_map(picture, found))
        shares = {int(label): (found == label).float().mean().item() for label in found.unique()}
        order = sorted(shares, key=lambda label: -shares[label])
        each = [f"{_name(label, classes)} {shares[label]:.0%} (#{_hex(label)})" for label in order]
        words.append(f"picture {index}: {', '.join(each)}")
    return drawn, words


def _hex(label: int) -> str:
    return "".join(f"{part:02x}" for part in colour_of(label))


def _name(label: int | Tensor, classes: tuple[str, ...] | None) -> str:
    return classes[int(label)] if classes else f"class {int(label)}"
