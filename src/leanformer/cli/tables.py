"""leanformer tables: the papers' parameters and MACs beside ours."""

import sys
from typing import Annotated

import tyro


def tables(
    system: Annotated[str, tyro.conf.Positional] = "all",
) -> int:
    """The paper's parameters and MACs beside ours, for one system or all; exits 1 where a figure is off by over 1%.

    Example: leanformer tables metaformer

    Args:
        system: The system's name, such as metaformer (an unknown one is answered with the names), or all.
    """
    from ..measure.terminal import console
    from ..papers.table import render
    from ..papers.tables import TABLES

    if system != "all" and system not in TABLES:
        raise ValueError(f"unknown system '{system}'; known: {', '.join(TABLES)}, all")
    wrong = []
    for name in TABLES if system == "all" else [system]:
        table, off = render(name, TABLES[name].rows)
        console().print(table)
        console().print(TABLES[name].counting, style="dim", highlight=False)
        wrong += off
    for line in wrong:
        print(f"off: {line}", file=sys.stderr)
    return 1 if wrong else 0
