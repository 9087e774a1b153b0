"""Values of a config are checked where they enter, by the type of their field and the range written beside it.

drop_path: Annotated[float, Within(0, 1, "[)")] | None = None
drop_path=5  →  ValueError: drop_path must be a number from 0 to below 1, or None, not 5
"""

import functools
import types
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

LARGEST = 1e30
"""No setting is meant to be larger than this; infinities and what is not a number never fit."""


@dataclass(frozen=True)
class Within:
    """The range of a number, for `Annotated`: the ends belong to it where the bracket is square.

    >>> Within(0, 1, "(]").holds(0), Within(0, 1, "(]").holds(1)
    (False, True)
    """

    low: float = -LARGEST
    high: float = LARGEST
    ends: Literal["[]", "(]", "[)", "()"] = "[]"

    def holds(self, value: float) -> bool:
        """Whether the value lies in the range."""
        above = self.low <= value if self.ends[0] == "[" else self.low < value
        return above and (value <= self.high if self.ends[1] == "]" else value < self.high)

    def words(self) -> str:
        """The range as a part of a sentence."""
        low = f"from {self.low:,}" if self.ends[0] == "[" else f"above {self.low:,}"
        if self.high == LARGEST:
            return low
        return f"{low} to {self.high:,}" if self.ends[1] == "]" else f"{low} to below {self.high:,}"


Count = Annotated[int, Within(1, 10**9)]
"""A number of things, at least one."""
Share = Annotated[float, Within(0, 1)]
"""A part of a whole."""
Amount = Annotated[float, Within(0)]
"""A number that is not negative."""
Above0 = Annotated[float, Within(0, ends="()")]
"""A number above 0."""


def check_fields(config: Any, of: str = "") -> None:
    """Refuse a dataclass with a field whose value is not of the field's type and range.

    Args:
        config: An object of a dataclass whose fields are numbers, texts, choices, pairs of these, or None.
        of: Words before the field's name in the message.

    Raises:
        ValueError: It names the field, what would work, and what was found.

    >>> @dataclass
    ... class Config:
    ...     rate: Annotated[float, Within(0, 1)] | None = 0.5
    >>> check_fields(Config(rate="fast"))
    Traceback (most recent call last):
    ValueError: rate must be a number from 0 to 1, or None, not 'fast'
    """
    hints = hints_of(type(config))
    for field in fields(config):
        check_value(f"{of}{field.name}", getattr(config, field.name), hints[field.name])


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that is not of the type and range `hint`, under its name.

    >>> check_value("epochs", 3, int)
    """
    if not fits(value, hint):
        raise ValueError(f"{name} must be {_words(hint)}, not {shown(value)}")


def shown(value: Any) -> str:
    """A value as an error message shows it: never longer than a part of a line.

    >>> shown([1] * 100)
    '[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, …'
    """
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:37]}…"


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, given as an annotation; whole numbers fit where a number is asked for.

    >>> fits((0.5, 1), tuple[float, float]), fits(True, int)
    (True, False)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fits(value, parts[0]) and all(_within(value, extra) for extra in parts[1:])
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple:
        parts = parts[:1] * len(value) if isinstance(value, tuple) and parts[-1] is Ellipsis else parts
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(fits, value, parts))
    if origin is list:
        return isinstance(value, list) and all(fits(item, parts[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(k, parts[0]) and fits(v, parts[1]) for k, v in value.items())
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool) and Within().holds(value)
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def _within(value: Any, extra: Any) -> bool:
    return not isinstance(extra, Within) or extra.holds(value)


@functools.cache
def hints_of(config: type) -> dict[str, Any]:
    """Field → its type, with its range."""
    return get_type_hints(config, include_extras=True)


def _words(hint: Any) -> str:
    """What would fit, as a part of a sentence."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        ranges = [extra.words() for extra in parts[1:] if isinstance(extra, Within)]
        return " ".join([_words(parts[0]), *ranges])
    if origin in (Union, types.UnionType):
        return ", or ".join(map(_words, parts))
    if origin is Literal:
        return " or ".join(parts)
    if origin is tuple:
        several = "some" if parts[-1] is Ellipsis else len(parts)
        return f"{several} values in brackets, each {_words(parts[0])}"
    if origin in (list, dict):
        return f"a {origin.__name__} of {_words(parts[-1])}"
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", type(None): "None"}
    return names.get(hint, f"a {getattr(hint, '__name__', hint)}")
