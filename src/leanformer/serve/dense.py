"""Detectors and segmenters as they are served: whole pictures in, objects or regions out, by the engine of `predict`.

images of any size, uint8 (C, h, w) → batch → rows as `lf.predict` gives them → JSON
"""

import base64
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core import input_of
from ..prediction.forms import prepare, view_of
from ..prediction.reading import PixelBatch
from ..prediction.running import Clock, Runner
from ..prediction.settings import Settings, task_name
from ..prediction.views import View
from .images import Decoder, Refused, Seen

MANY = 1 << 30
"""Images that a service may be asked for: its batches are as large as they are for a long run."""
WANTS = {"detection": "objects", "segmentation": "regions"}
"""Task → what is asked of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedDense:
    """A detector or a segmenter ready to be served.

    Attributes:
        name: What answers call it.
        runtime: What computes it.
        task: detection or segmentation.
        config: Input size and normalisation, as `input_of` gives them.
        classes: The names of the classes.
        view: How it sees pictures.
        runner: What answers a batch.
    """

    name: str
    runtime: str
    task: str
    config: dict[str, Any]
    classes: Sequence[str]
    view: View
    runner: Runner

    @property
    def batch(self) -> int:
        """Images that are given at once at most."""
        return self.runner.size

    def wants(self) -> dict[str, Callable[[Sequence[Tensor]], Sequence[Any]]]:
        """What can be asked of it → what computes the answers."""
        return {WANTS[self.task]: self}

    def decoder(self, max_pixels: int) -> Decoder:
        """Makes what it sees of the bytes of an image."""
        return WholeDecoder(self.view, max_pixels)

    def __call__(self, images: Sequence[Tensor]) -> list[dict[str, Any]]:
        groups = [(torch.tensor([index]), image[None]) for index, image in enumerate(images)]
        batch = PixelBatch(0, [""] * len(images), [None] * len(images), groups, 0.0, 0.0)
        return list(self.runner.one(batch, Clock()).rows())

    def told(self, seen: Seen, answer: dict[str, Any], score: float = 0.0, **other: Any) -> dict[str, Any]:
        """What is said of one image.

        Args:
            seen: The image.
            answer: The row that was computed of it.
            score: Objects below it are left out.
        """
        if answer["error"]:
            raise Refused(500, f"{answer['error']}; its weights may be broken")
        size, kinds = answer["size"].tolist(), list(zip(answer["classes"].tolist(), answer["names"]))
        if self.task == "segmentation":
            shares = [round(share, 6) for share in answer["shares"].tolist()]
            classes = [{"index": label, "name": name, "share": share} for (label, name), share in zip(kinds, shares)]
            return {"size": size, "classes": classes, "label_map": base64.b64encode(answer["label_map"]).decode()}
        masks = answer.get("masks") or [None] * len(kinds)
        objects = [
            {"index": label, "name": name, "score": round(sure, 6), "box": [round(side, 2) for side in box]}
            | ({} if runs is None else {"mask": {"size": size, "counts": runs}})
            for (label, name), sure, box, runs in zip(kinds, answer["scores"].tolist(), answer["boxes"].tolist(), masks)
            if sure >= score
        ]
        return {"size": size, "objects": objects}

    def warm_up(self, batch: int) -> None:
        """Compute once with a full batch, and refuse a model that answers nonsense."""
        image = torch.zeros(self.config["input_size"], dtype=torch.uint8)
        for row in self([image] * min(batch, self.batch)):
            if row["error"]:
                raise ValueError(f"{self.name}: {row['error']}; its weights are broken")


class WholeDecoder(Decoder):
    """Turns the bytes of one image into all its pixels, uint8 (C, h, w)."""

    def __init__(self, view: View, max_pixels: int) -> None:
        self.view, self.channels, self.max_pixels = view, view.channels, max_pixels

    def _refuse_narrow(self, width: int, height: int) -> None:
        try:
            self.view.check(width, height)
        except ValueError as error:
            raise Refused(422, str(error)) from error

    def _box(self, width: int, height: int) -> tuple[float, float, float, float]:
        return 0.0, 0.0, 1.0, 1.0


def of_dense(model: nn.Module, name: str, classes: Sequence[str]) -> ServedDense:
    """A detector or a segmenter, on the device where it is.

    Args:
        model: The model; one made by `lf.optimize` answers in its plain form, which takes images of any size.
        name: What answers call it.
        classes: The names of its classes.
    """
    device = next(model.parameters()).device
    settings = Settings(classes=tuple(classes), device=str(device)).resolved(model, rows=MANY)
    view = view_of(model, settings)
    return ServedDense(
        name=name, runtime="torch", task=task_name(model), config=input_of(model), classes=classes, view=view,
        runner=Runner(prepare(model, settings), view, device, settings.batch_size or 1),
    )  # fmt: skip
