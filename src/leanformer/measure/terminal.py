"""Where tables go: the terminal at its width, or a file or pipe at a width that no table needs to fold for."""

import io
import sys

from rich.console import Console, RenderableType

WIDE = 150


def console() -> Console:
    """The console of standard output.

    >>> console().print("hello")
    hello
    """
    return Console(width=None if sys.stdout.isatty() else WIDE)


def as_text(table: RenderableType) -> str:
    """A table as plain text.

    >>> as_text("hello")
    'hello\\n'
    """
    file = io.StringIO()
    Console(file=file, width=WIDE).print(table)
    return file.getvalue()
