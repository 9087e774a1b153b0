"""What classes are called: the names on a model's card, ImageNet's words, or a number."""

import re
from collections.abc import Sequence
from functools import cache

from timm.data import ImageNetInfo

IMAGENET = 1000
WORDNET = re.compile(r"(?<![\w/])n\d{8}(?![\w/])")


def class_name(index: int, total: int, classes: Sequence[str] | None = None) -> str:
    """The name of a class: from `classes`, or ImageNet's where there are 1000, or its number.

    Args:
        index: Which class.
        total: How many there are.
        classes: Their names, where they are known; WordNet ids become words.

    >>> class_name(207, 1000), class_name(3, 5), class_name(0, 2, ["n01440764", "dog"])
    ('golden retriever', 'class 3', 'tench')
    """
    if classes is not None:
        return word_of(str(classes[index]))
    return word_of(_imagenet().label_names()[index]) if total == IMAGENET else f"class {index}"


def class_names_of(total: int, classes: Sequence[str] | None = None) -> tuple[str, ...]:
    """The names of all classes, as `class_name` gives each.

    >>> class_names_of(2), class_names_of(2, ["n01440764", "dog"])
    (('class 0', 'class 1'), ('tench', 'dog'))
    """
    return tuple(class_name(index, total, classes) for index in range(total))


def word_of(name: str) -> str:
    """The first word for a WordNet id such as the folders of ImageNet have; every other name stays as it is.

    >>> word_of("n02099601"), word_of("cat"), word_of("n99999999")
    ('golden retriever', 'cat', 'n99999999')
    """
    if len(name) != 9 or name[0] != "n" or not name[1:].isdecimal():
        return name
    try:
        return _imagenet().label_name_to_description(name).split(",")[0]
    except KeyError:
        return name


def in_words(text: str) -> str:
    """A text with every WordNet id in it replaced by its word; names of files and folders stay.

    >>> in_words("recall.n02099601"), in_words("n99999999 left"), in_words("val/n02099601/n02099601_1.JPEG")
    ('recall.golden retriever', 'n99999999 left', 'val/n02099601/n02099601_1.JPEG')
    """
    return WORDNET.sub(lambda found: word_of(found.group()), text)


@cache
def _imagenet() -> ImageNetInfo:
    return ImageNetInfo()
