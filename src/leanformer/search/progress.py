"""What a run of `lean` tells people while it works: lines, and on a terminal a bar with the time left of each step."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ..measure.terminal import console


class Progress:
    """Lines and bars; without a terminal lines alone, and where it is quiet nothing.

    Args:
        said: takes each line, and there are no bars; by default lines are printed.
        quiet: neither lines nor bars.

    Attributes:
        steps: what each step took, in the order in which they ended.

    >>> lines = []
    >>> progress = Progress(lines.append)
    >>> with progress.step("judging plans", 2) as done:
    ...     done(1)
    >>> lines, [step["step"] for step in progress.steps]
    (['judging plans'], ['judging plans'])
    """

    def __init__(self, said: Callable[[str], None] | None = None, quiet: bool = False):
        self.quiet = quiet
        self._console: Console = console()
        self._said = said
        self._bars: Bars | None = None
        self.steps: list[dict[str, Any]] = []

    def say(self, text: str) -> None:
        """One line for people."""
        if self.quiet:
            return
        if self._said is not None:
            self._said(text)
        else:
            self._console.print(text, highlight=False, markup=False)

    @property
    def prints(self) -> bool:
        """Whether lines go to the console, and not nowhere or to the caller."""
        return not self.quiet and self._said is None

    @property
    def shows_bars(self) -> bool:
        return self.prints and self._console.is_terminal

    @contextmanager
    def step(self, name: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """A step of known length; yields a function that is called with how much is done, or for one piece more.

        Args:
            name: what is done, in a few words.
            total: how many pieces of work there are; None for a step of one piece.
        """
        self.say(name)
        with self.clocked(name), self._bar(name, total) as done:
            yield done

    @contextmanager
    def clocked(self, name: str) -> Iterator[None]:
        """Keep what a step takes, also of one that was interrupted, without a bar or a line.

        Args:
            name: what is done, in a few words.
        """
        began = time.perf_counter()
        try:
            yield
        finally:
            self.steps.append({"step": name, "seconds": round(time.perf_counter() - began, 1)})

    @contextmanager
    def _bar(self, name: str, total: int | None) -> Iterator[Callable[..., None]]:
        """The bar of a step, where bars are shown and there is none yet."""
        if not self.shows_bars or self._bars is not None:
            yield lambda done=None: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Bars(*columns, console=self._console, transient=True)
        task = self._bars.add_task(name, total=total)
        try:
            with self._bars as bars:
                yield lambda done=None: bars.update(task, completed=done, advance=1 if done is None else None)
        finally:
            self._bars = None


def in_words(seconds: float) -> str:
    """A time as people say it.

    >>> in_words(42), in_words(400), in_words(9000)
    ('42 s', '7 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
