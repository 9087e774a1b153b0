"""The one way in which choices are written as text: `name:option=value,option=value`.

Methods, recipes, objectives and arguments of models are all read here, so that a value means the same everywhere.
"""

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

WORDS = {"true": True, "false": False, "none": None}


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options in `name` or `name:option=value,option=value`.

    A comma separates options only where the next `option=` follows, so that a value may hold commas itself.

    Args:
        text: What the user wrote.

    Raises:
        ValueError: A part is not option=value, or an option is given twice.

    >>> parse_spec("finetune:lr=0.1,at=(3,6,9)")
    ('finetune', {'lr': 0.1, 'at': (3, 6, 9)})
    """
    name, _, rest = text.partition(":")
    parts = re.split(r",(?=\s*\w+\s*=)", rest) if rest.strip() else []
    return name.strip(), parse_options(parts, f" in '{text}'")


def parse_options(texts: Sequence[str], where: str = "") -> dict[str, Any]:
    """Options written as name=value, as a dict; a value that is no Python literal is a text.

    Args:
        texts: one option each.
        where: Words for the error, which say what the options are a part of.

    Raises:
        ValueError: for a text without an equals sign, or an option that is given twice.

    >>> parse_options(["img_size=384", "global_pool=avg"])
    {'img_size': 384, 'global_pool': 'avg'}
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, value = parse_setting(text, where)
        if name in options:
            raise ValueError(f"'{name}' is given twice{where}")
        options[name] = value
    return options


def refuse_unknown(what: str, options: Iterable[str], known: Collection[str]) -> None:
    """Refuse the first option that is not among the known ones.

    Args:
        what: whose options they are, as a message to the user names it.
        options: names.
        known: names.

    >>> refuse_unknown("soft", ["heat"], ["temperature", "weight"])
    Traceback (most recent call last):
    ValueError: soft has no option 'heat'; its options: temperature, weight
    """
    for option in options:
        if option not in known:
            raise ValueError(f"{what} has no option '{option}'; its options: {', '.join(known) or 'none'}")


def parse_setting(text: str, where: str = "") -> tuple[str, Any]:
    """The option and the value in `option=value`.

    Args:
        text: What the user wrote.
        where: Words for the error, which say what the text is a part of.

    >>> parse_setting("global_pool = avg")
    ('global_pool', 'avg')
    """
    option, equals, value = text.partition("=")
    if not equals or not option.strip():
        raise ValueError(f"'{text}'{where} is not option=value")
    return option.strip(), literal(value.strip())


def literal(text: str) -> Any:
    """The value that a text stands for: a Python literal, true, false or none in any case, or the text itself.

    Args:
        text: What stands behind the = sign.

    >>> literal("(1, 2)"), literal("True"), literal("none"), literal("avg")
    ((1, 2), True, None, 'avg')
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # all that literal_eval raises on text
        return WORDS.get(text.lower(), text)
