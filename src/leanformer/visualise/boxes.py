"""Tables that a terminal drew with lines, as rows again: what a text file shows in a box, a page shows as a table.

┏━━━━━━━┳━━━━━━━┓
┃ model ┃ top-1 ┃      →   [{"model": "vit", "top-1": "93.6%"}]
┡━━━━━━━╇━━━━━━━┩
│ vit   │ 93.6% │
└───────┴───────┘
"""

import re
from collections.abc import Iterator
from itertools import groupby

Rows = list[dict[str, str]]
HEAD, BODY = "┃", "│"
RULES = re.compile(r"[\s─━┄┈┌┬┐├┼┤└┴┘┏┳┓┡╇┩┣╋┫┗┻┛╞╪╡╺╸╶╴╷╵]+")


def parts(text: str) -> Iterator[str | Rows]:
    """A text, cut into its tables as rows and the texts between them; a text without tables comes as it is.

    >>> list(parts("speed\\n┏━━━┳━━━┓\\n┃ a ┃ b ┃\\n┡━━━╇━━━┩\\n│ 1 │ 2 │\\n└───┴───┘\\n"))
    ['speed', [{'a': '1', 'b': '2'}]]
    """
    for boxed, lines in groupby(text.splitlines(), key=_in_a_box):
        block = list(lines)
        rows = _rows(block) if boxed else []
        if rows:
            yield rows
        elif "\n".join(block).strip():
            yield "\n".join(block).strip("\n").rstrip()


def _in_a_box(line: str) -> bool:
    line = line.strip()
    return bool(line) and (line[0] in HEAD + BODY or (not line.isspace() and RULES.fullmatch(line) is not None))


def _rows(lines: list[str]) -> Rows:
    """The rows of one table; none where it has no head or its lines have different numbers of cells."""
    cells = [[cell.strip() for cell in re.split(f"[{HEAD}{BODY}]", line.strip())[1:-1]] for line in lines]
    heads = [row for row, line in zip(cells, lines) if line.strip().startswith(HEAD)]
    bodies = [row for row, line in zip(cells, lines) if line.strip().startswith(BODY)]
    if not heads or any(len(row) != len(heads[0]) for row in (*heads, *bodies)):
        return []
    names = [" ".join(filter(None, column)) for column in zip(*heads)]  # a head may take several lines
    unique = [name if names.index(name) == place else f"{name} ({place + 1})" for place, name in enumerate(names)]
    return [dict(zip(unique, row)) for row in bodies]
