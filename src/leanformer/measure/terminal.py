"""Where tables go: the terminal at its width, or a file or pipe at a width that no table needs to fold for."""

import io
import sys

from rich.console import Console, RenderableType
from rich.table import Table

WIDE = 150


class Printed:
    """Something that prints as a table: `__rich__` gives it for terminals, `str` is the same as plain text."""

    def __rich__(self) -> Table:
        raise NotImplementedError

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def print(self) -> None:
        """Print the table to the terminal."""
        console().print(self)


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
