"""What classes are called."""

from collections.abc import Sequence
from functools import cache

from timm.data import ImageNetInfo

IMAGENET = 1000


def class_name(index: int, total: int, classes: Sequence[str] | None = None) -> str:
    """The name of a class: from `classes`, or ImageNet's where there are 1000, or its number.

    >>> class_name(207, 1000), class_name(3, 5)
    ('golden retriever', 'class 3')
    """
    if classes is not None:
        return str(classes[index])
    return _imagenet()[index] if total == IMAGENET else f"class {index}"


@cache
def _imagenet() -> list[str]:
    info = ImageNetInfo()
    return [info.index_to_description(index).split(",")[0] for index in range(IMAGENET)]
