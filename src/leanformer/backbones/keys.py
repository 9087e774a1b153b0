"""Names of weights as others have them, and as they are called here."""

import re
from collections.abc import Sequence


class KeyMap:
    """Renames keys both ways by pairs of patterns, `{i}` standing for a number and `{*}` for any rest.

    The first pair that matches counts; a key that matches none stays as it is.

    >>> keys = KeyMap([("blocks.{i}.norm1.{*}", "blocks.{i}.mix.norm.{*}")])
    >>> keys.ours("blocks.3.norm1.bias"), keys.theirs("blocks.3.mix.norm.bias")
    ('blocks.3.mix.norm.bias', 'blocks.3.norm1.bias')
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]):
        self._ours = [(_regex(theirs), _template(ours)) for theirs, ours in pairs]
        self._theirs = [(_regex(ours), _template(theirs)) for theirs, ours in pairs]

    def ours(self, key: str) -> str:
        return _rename(key, self._ours)

    def theirs(self, key: str) -> str:
        return _rename(key, self._theirs)


def _regex(pattern: str) -> re.Pattern[str]:
    text = re.escape(pattern).replace(r"\{\*\}", "(?P<rest>.*)")
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", text))


def _template(pattern: str) -> str:
    return re.sub(r"\{(\w)\}", r"\\g<\1>", pattern.replace("{*}", r"\g<rest>"))


def _rename(key: str, table: list[tuple[re.Pattern[str], str]]) -> str:
    for pattern, template in table:
        match = pattern.fullmatch(key)
        if match:
            return match.expand(template)
    return key
