"""leanformer tables: the papers' parameters and MACs beside ours."""

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Annotated

import tyro

from .. import tables as systems
from ..measure.console import console
from ..tables.table import render
from .results_page import write_page


def tables(
    system: Annotated[str, tyro.conf.Positional] = "all",
    markdown: Path | None = None,
    results: Path = Path("results"),
) -> int:
    """The paper's parameters and MACs beside ours, for one system or all; exits 1 where a figure is off by over 1%.

    Example: leanformer tables evit

    Args:
        system: metaformer, riformer, repa, sit, evit, or all.
        markdown: Write a page instead, with what was measured: docs/results.md.
        results: The folder of the result files that the page shows.
    """
    known = sorted(m.name for m in pkgutil.iter_modules(systems.__path__) if m.name != "table")
    if system != "all" and system not in known:
        raise ValueError(f"unknown system '{system}'; known: {', '.join(known)}, all")
    chosen = {
        name: importlib.import_module(f"{systems.__name__}.{name}") for name in (known if system == "all" else [system])
    }
    wrong = []
    if markdown is not None:
        content = {name: (module.ROWS, (module.__doc__ or "").strip()) for name, module in chosen.items()}
        page, wrong = write_page(content, markdown, results)
        console().print(f"wrote {page}")
    else:
        for name, module in chosen.items():
            table, off = render(name, module.ROWS)
            console().print(table)
            console().print((module.__doc__ or "").strip(), style="dim", highlight=False)
            wrong += off
    for line in wrong:
        print(f"off: {line}", file=sys.stderr)
    return 1 if wrong else 0
