"""Checks of what a card says, which is a claim by whoever wrote the file.

Every check ends in a `ValueError` of one line that says what was found and what would work.
"""

import math
from collections.abc import Sequence
from typing import Any

LONGEST = 400
"""Characters of a message; what a damaged file says of itself can be megabytes."""
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming", "random")
CROPS = ("center", "squash", "border")
CROP_SHARES = (0.05, 2.0)
"""Shares of a picture that a crop may have; a tiny one would blow every picture up without bound."""


def one_line(text: Any, most: int = LONGEST) -> str:
    """A text without line breaks and of bounded length, fit for one line of a message.

    >>> one_line("size mismatch\\n   for head")
    'size mismatch for head'
    """
    joined = " ".join(str(text)[: 4 * most].split())
    return joined if len(joined) <= most else f"{joined[: most - 1]}…"


def check_view(view: Any) -> dict[str, Any]:
    """Normalisation and crop from a card, with tuples where JSON has lists; refuses what no picture can go through.

    >>> check_view({"mean": [0.5, 0.5, 0.5], "crop_pct": 1.0})
    {'mean': (0.5, 0.5, 0.5), 'crop_pct': 1.0}
    """
    if not isinstance(view, dict):
        raise ValueError(f"the card's input is {one_line(repr(view), 80)}, not an object")
    checks = {
        "input_size": lambda v: _all(v, int) and len(v) == 3 and all(0 < side <= 65_536 for side in v),
        "mean": lambda v: _all(v, float),
        "std": lambda v: _all(v, float) and all(each > 0 for each in v),
        "interpolation": lambda v: v in INTERPOLATIONS,
        "crop_pct": lambda v: _number(v, float) and CROP_SHARES[0] <= v <= CROP_SHARES[1],
        "crop_mode": lambda v: v in CROPS,
    }
    known = {name: value for name, value in view.items() if name in checks and value is not None}
    for name, value in known.items():
        if not checks[name](value):
            raise ValueError(f"the card's input has {name}={one_line(repr(value), 80)}, which no picture can have")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}


def check_classes(classes: Any, total: int | None) -> tuple[str, ...] | None:
    """Names of classes as a tuple, one for each of `total` outputs; None stays None.

    >>> check_classes(["cat", "dog"], 2)
    ('cat', 'dog')
    """
    if classes is None:
        return None
    if not isinstance(classes, Sequence) or isinstance(classes, str) or not all(isinstance(c, str) for c in classes):
        raise ValueError(f"names of classes are texts, one a class, not {one_line(repr(classes), 80)}")
    if total is not None and len(classes) != total:
        raise ValueError(f"{len(classes)} names of classes do not fit a model with {total} outputs")
    return tuple(classes)


def check_numbers(arguments: Any, most: int, where: str) -> None:
    """Refuse numbers, texts and lists in a card's arguments that are larger than any weights in the file could be.

    Args:
        arguments: The arguments, as JSON gives them.
        most: The largest whole number, and the longest list or text.
        where: What the message says of where they stand.

    >>> check_numbers({"depth": 10**9}, 1000, "the card")
    Traceback (most recent call last):
    ValueError: the card has 1000000000, which is more than its weights could carry (1000)
    """
    if isinstance(arguments, dict | list | tuple):
        inside = [*arguments, *arguments.values()] if isinstance(arguments, dict) else arguments
        if len(inside) > most:
            raise ValueError(f"{where} has a list of {len(inside)} values, more than its weights could carry ({most})")
        for each in inside:
            check_numbers(each, most, where)
    elif isinstance(arguments, float) and not math.isfinite(arguments):
        raise ValueError(f"{where} has the number {arguments}, which is not finite")
    elif isinstance(arguments, int) and arguments > most:
        raise ValueError(f"{where} has {_digits(arguments)}, which is more than its weights could carry ({most})")
    elif isinstance(arguments, int) and arguments < 0:
        raise ValueError(f"{where} has {_digits(arguments)}, and nothing of a model can be negative")
    elif isinstance(arguments, str) and len(arguments) > most:
        raise ValueError(f"{where} has a text of {len(arguments)} characters, longer than any setting")


def _digits(value: int) -> str:
    return str(value) if abs(value) < 10**30 else "a number of more than 30 digits"


def _all(value: Any, kind: type) -> bool:
    return isinstance(value, list | tuple) and 0 < len(value) < 64 and all(_number(each, kind) for each in value)


def _number(value: Any, kind: type) -> bool:
    return isinstance(value, (int, kind)) and not isinstance(value, bool) and abs(value) < 1e9
