"""What a detector is built with beside its backbone and its classes."""

import dataclasses
from typing import Annotated, Any, get_type_hints

from ..core.checked import check_view
from ..core.spec import refuse_unknown
from ..fields import Count, Share, Within, check_value

Side = Annotated[int, Within(16, 65_536)]
"""Pixels of a side of an image."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What a detector is built with beside its backbone; the defaults are those of the COCO models."""

    levels: tuple[int, ...] | None = None
    """Maps of the backbone; None: all for R-CNNs, all but the finest for RetinaNet."""
    channels: Count = 256
    """Of the feature pyramid and the heads over it."""
    min_size: Side = 800
    """The shorter side of images is resized to this, unless the longer one would exceed `max_size`."""
    max_size: Side = 1333
    score_threshold: Share = 0.05
    nms_threshold: Share = 0.5
    detections: Count = 100
    """The most boxes that are answered for an image."""
    mean: tuple[float, ...] | None = None
    """Of the normalisation; None: the backbone's."""
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        hints = get_type_hints(Options, include_extras=True)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("levels", "mean", "std"):
                object.__setattr__(self, field.name, tuple(value) if isinstance(value, list) else value)  # from JSON
            else:
                check_value(field.name, value, hints[field.name])
        check_view({"mean": self.mean, "std": self.std})
        if self.max_size < self.min_size:
            raise ValueError(f"max_size {self.max_size} is below min_size {self.min_size}")


def parse_options(given: dict[str, Any]) -> Options:
    """Options by name; an unknown one is refused.

    Args:
        given: name → value.
    """
    refuse_unknown("a detector", given, [field.name for field in dataclasses.fields(Options)])
    return Options(**given)
