"""leanformer backbones: every timm model of the families that can be adopted, or why not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from .checks import one_of, output_files

if TYPE_CHECKING:
    from ..backbones.census import Entry


def backbones(family: Annotated[str, tyro.conf.Positional] = "all", markdown: Path | None = None) -> None:
    """Every timm model of the adopted families: what its blocks mix with, or the reason why it is refused.

    Example: leanformer backbones deit

    Args:
        family: One of timm's modules (vision_transformer, deit, swin_transformer, mlp_mixer, metaformer ...), or all.
        markdown: Write the table to this file as well.
    """
    from rich.progress import track
    from rich.table import Table

    from ..backbones.census import FAMILIES, census
    from ..core import write_atomically
    from ..measure.terminal import console

    one_of((*FAMILIES, "all"), family=(family,))
    output_files(markdown, folders=False)
    chosen = FAMILIES if family == "all" else (family,)
    out = console()
    entries = [entry for name in track(chosen, "adopting", console=out, transient=True) for entry in census(name)]
    table = Table("model", "class", "blocks", "M parameters", "verdict", title=_title(entries), title_justify="left")
    table.columns[3].justify = "right"
    for entry in entries:
        table.add_row(*_cells(entry), style="red" if entry.refused else "")
    out.print(table)
    if markdown is not None:
        write_atomically(markdown, lambda name: Path(name).write_text(to_markdown(entries, family), encoding="utf-8"))
        out.print(f"written to {markdown}")


def to_markdown(entries: list[Entry], family: str = "all") -> str:
    """The census as a page: the command that made it, a summary, and a table for each family."""
    command = "leanformer backbones" + ("" if family == "all" else f" {family}")
    lines = [
        "# Backbones",
        "",
        f"Which of timm's models `lf.adopt` and `lf.create` take. Made by `{command} --markdown docs/backbones.md`.",
        "",
        f"{_title(entries)}. Whatever is not listed, and every model of another timm module, is refused by its class.",
    ]
    for name in dict.fromkeys(entry.family for entry in entries):
        lines += ["", f"## {name}", "", "| model | class | blocks | M parameters | verdict |"]
        lines += ["| --- | --- | --- | ---: | --- |"]
        lines += [f"| {' | '.join(_cells(entry))} |" for entry in entries if entry.family == name]
    return "\n".join(lines) + "\n"


def _title(entries: list[Entry]) -> str:
    import timm

    adopted = sum(not entry.refused for entry in entries)
    return f"timm {timm.__version__}: {adopted} models adopted, {len(entries) - adopted} refused"


def _cells(entry: Entry) -> tuple[str, ...]:
    verdict = f"refused: {entry.refused}" if entry.refused else "adopted"
    return entry.name, entry.model, entry.blocks, f"{entry.parameters / 1e6:.2f}", verdict
