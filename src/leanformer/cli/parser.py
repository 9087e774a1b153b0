"""One verb's command line → a call that is ready to be made; what does not parse is one line."""

import contextlib
import functools
import io
import json
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

EXAMPLES: dict[str, str] = json.loads((files("leanformer") / "methods" / "examples.json").read_text())
"""A method as the command line writes it, by what it makes cheaper. `{tokens}` in a verb's docstring stands for one."""


def parse(function: Callable[..., Any], verb: str, given: list[str]) -> Callable[[], Any] | None:
    """The call of a verb's function that the command line asks for; None where it asked for help, which is printed.

    Args:
        function: The verb, with its options as parameters and its help as docstring.
        verb: Its name.
        given: What stands behind the verb.

    Raises:
        ValueError: The command line does not fit the verb's options.
    """
    import tyro

    @functools.wraps(function)
    def ready(*arguments: Any, **options: Any) -> Callable[[], Any]:
        return functools.partial(function, *arguments, **options)

    for part, spec in EXAMPLES.items():
        ready.__doc__ = (ready.__doc__ or "").replace(f"{{{part}}}", spec)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(ready, prog=f"leanformer {verb}", args=given)
    except SystemExit as stop:
        if not stop.code:
            return None
        raise ValueError(f"{told(said.getvalue())}; leanformer {verb} --help tells the options") from None


def told(box: str) -> str:
    """What the parser says within its frame, up to the first rule, as one line.

    >>> told("╭─ Parsing error ─╮\\n│ Missing:        │\\n│ --data          │\\n│ ─────────────── │\\n│ more │\\n╰──╯")
    'Missing: --data'
    """
    blocks: list[list[str]] = [[]]
    framed = False
    for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines():
        inner = line.strip().strip("│").strip()
        if line.strip()[:1] in ("╭", "╰"):  # the title and the lower edge
            framed = True
        elif inner and set(inner) <= set("─-"):
            blocks.append([])
        elif inner:
            blocks[-1].append(inner)
    said = blocks if framed or len(blocks) < 2 else blocks[1:]  # without a frame, the title stands above a rule
    return " ".join(said[0]).rstrip(".") or "the command line cannot be read"
