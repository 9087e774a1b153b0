"""describe: what stands in each slot of each block, what it costs, and what is left of it after fuse."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from rich.table import Table
from torch import nn

from ..core import Fusible, blocks_of, card_of, fold, input_of, plain_of
from .counting import Count, count_modules
from .terminal import Printed


@dataclass(frozen=True)
class Line:
    """One slot, or one part of the model outside its blocks."""

    path: str
    slot: str
    module: str
    method: str
    before: Count
    after: Count | None


@dataclass(frozen=True)
class Description(Printed):
    """The lines of a model; prints as a table in a terminal, and as text through `str`."""

    title: str
    lines: tuple[Line, ...]
    total: Count
    fused: Count | None

    def __rich__(self) -> Table:
        return _render(self)


def describe(model: nn.Module, size: tuple[int, int, int] | None = None) -> Description:
    """Block → slot → module and method, with parameters and MACs, before and after fuse.

    Args:
        model: a model with blocks.
        size: of an image, (C, H, W); by default the model's own.

    >>> import leanformer as lf
    >>> "deit_tiny_patch16_224" in str(lf.describe(lf.create("deit_tiny_patch16_224")))
    True
    """
    steps = (card_of(model).optimised or {}).get("steps")
    model = plain_of(model)
    card = card_of(model)
    before = count_modules(model, size)
    after = None
    if not card.fused and any(isinstance(module, Fusible) for module in model.modules()):
        after = count_modules(fold(copy.deepcopy(model).to("meta")), size or input_of(model)["input_size"])
    image = "x".join(str(n) for n in size or input_of(model)["input_size"])
    methods = " + ".join(repr(method) for method in card.methods) or "no method"
    title = f"{card.backbone or type(model).__name__} at {image}, {methods}{', fused' if card.fused else ''}"
    title += "" if steps is None else f", optimised: {', '.join(steps) or 'torch.compile'}"
    return Description(title, tuple(_lines(model, before, after)), before[""], after[""] if after else None)


def _lines(model: nn.Module, before: dict[str, Count], after: dict[str, Count] | None) -> Iterator[Line]:
    blocks, claims = blocks_of(model), card_of(model).claims
    seen: set[str] = set()
    for path in before:
        block = next((b for b in blocks if path == b or path.startswith(f"{b}.")), None)
        if block is None:
            if path and not any(b.startswith(f"{path}.") for b in blocks) and not _inside(path, seen):
                seen.add(path)
                if before[path] != Count(0, 0):
                    yield _line(model, path, "", "", before, after)
        elif path == block:
            for slot in blocks[block].slots:
                yield _line(model, f"{block}.{slot}", slot, claims.get(f"{block}.{slot}", ""), before, after)


def _line(
    model: nn.Module, path: str, slot: str, method: str, before: dict[str, Count], after: dict[str, Count] | None
) -> Line:
    module = model.get_submodule(path)
    inner = getattr(module, "fn", module)
    where = path.rpartition(".")[0] if slot else path
    return Line(where, slot, type(inner).__name__, method, before[path], after[path] if after else None)


def _inside(path: str, seen: set[str]) -> bool:
    return any(path.startswith(f"{outer}.") for outer in seen)


def _render(description: Description) -> Table:
    table = Table(title=description.title, title_justify="left")
    for name in ("block", "slot", "module", "method"):
        table.add_column(name, no_wrap=True)
    for name in ("parameters", "MACs", *(("fused parameters", "fused MACs") if description.fused else ())):
        table.add_column(name, justify="right")
    for name, rows in _folded(description.lines):
        for index, row in enumerate(rows):
            if row.slot == "pre" and row.module == "Identity":
                continue
            table.add_row(
                name if index == 0 or rows[index - 1].module == "Identity" else "",
                row.slot,
                row.module,
                row.method,
                *_figures(row.before),
                *(_figures(row.after) if description.fused and row.after else ()),
            )
    table.add_section()
    table.add_row(
        "model", "", "", "", *_figures(description.total), *(_figures(description.fused) if description.fused else ())
    )
    return table


def _folded(lines: tuple[Line, ...]) -> Iterator[tuple[str, list[Line]]]:
    """Blocks that are alike and follow each other become one entry, `blocks.0-5`."""
    groups = [(path, list(rows)) for path, rows in groupby(lines, key=lambda line: line.path)]
    look = lambda rows: [(r.slot, r.module, r.method, r.before, r.after) for r in rows]  # noqa: E731
    for _, alike in groupby(groups, key=lambda g: (g[0].rpartition(".")[0] if g[1][0].slot else g[0], look(g[1]))):
        members = list(alike)
        first, last = members[0][0], members[-1][0]
        yield (first if first == last else f"{first}-{last.rpartition('.')[2]}"), members[0][1]


def _figures(count: Count) -> tuple[str, str]:
    pooling = f" + {_short(count.pooling)} adds" if count.pooling else ""
    return f"{count.parameters:,}", f"{_short(count.macs)}{pooling}"


def _short(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3f} {unit}"
    return str(number)
