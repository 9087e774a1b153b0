"""Rows of a paper's table: what the paper prints, what we count, and whether they agree.

A figure agrees within 1%, or within half a unit of the last digit that the paper prints.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import torch
from rich.table import Table
from timm.layers import GroupNorm1
from torch import Tensor, nn

from ..core import input_of
from ..measure import Count, count

TOLERANCE = 0.01
Convention = Callable[[Count, nn.Module], tuple[float, float]]
"""A way of counting: our count and the model → parameters in M and MACs in G."""


@dataclass(frozen=True)
class Row:
    """One row: the paper's figures as printed ('' where it prints none) and a function that builds our model.

    `differs` states a known reason (a counting convention, a misprint) why a figure of the paper is off; such a row
    is shown and not judged.
    """

    table: str
    model: str
    build: Callable[[], nn.Module] | None
    """None for a model of others that is quoted and cannot be built here."""
    params: str = ""
    macs: str = ""
    size: tuple[int, int, int] | None = None
    differs: str = ""
    published: dict[str, str] = field(default_factory=dict)
    """Further published figures, e.g. {'top-1': '79.5', 'img/s': '4385'}."""
    counted: Convention | None = None
    """The paper's own counting convention; ours when None. All rows of one table have the same."""

    def measure(self) -> tuple[float, float]:
        """Our parameters in M and MACs in G, counted on the meta device the way the paper counts."""
        return self.both()[1]

    def both(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Parameters in M and MACs in G: as we count, and as the paper counts."""
        assert self.build is not None, f"{self.model} is quoted, not built"
        with torch.device("meta"):
            model = self.build()
        found = count(model, self.size)
        ours = found.parameters / 1e6, found.macs / 1e9
        return ours, self.counted(found, model) if self.counted else ours


@dataclass(frozen=True)
class PaperTables:
    """The tables of one paper: their rows, and in words how the paper counts and on what it timed."""

    rows: Sequence[Row]
    counting: str


def norm_elements(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> int:
    """How many elements the norms of these kinds put out for one image.

    >>> norm_elements(nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)), (nn.BatchNorm2d,))
    100352
    """
    sizes: list[int] = []

    def note(module: nn.Module, inputs: object, output: Tensor) -> None:
        sizes.append(output.numel())

    twin = copy.deepcopy(model).to("meta").eval()
    for module in twin.modules():
        if isinstance(module, kinds):
            module.register_forward_hook(note)
    with torch.no_grad():
        twin(torch.empty(1, *input_of(model)["input_size"], device="meta"))
    return sum(sizes)


def trainable(count: Count, model: nn.Module) -> tuple[float, float]:
    """Parameters in M without the frozen ones, and our MACs in G."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6, count.macs / 1e9


def fvcore(count: Count, model: nn.Module) -> tuple[float, float]:
    """Trainable parameters in M, and MACs in G as fvcore counts: five operations for each element of a GroupNorm."""
    params, macs = trainable(count, model)
    return params, macs + 5 * norm_elements(model, (GroupNorm1,)) / 1e9


def agrees(printed: str, ours: float) -> bool:
    """Whether a figure as printed and ours are the same figure.

    >>> agrees("1.8", 1.812), agrees("1.8", 1.92), agrees("", 5.0)
    (True, False, True)
    """
    if not printed:
        return True
    number = Decimal(printed)
    unit = float(10 ** Decimal(number.as_tuple().exponent))
    return abs(ours - float(number)) <= max(TOLERANCE * float(number), unit / 2 + 1e-9)


def render(title: str, rows: Sequence[Row]) -> tuple[Table, list[str]]:
    """A rich table of the rows and a line for each figure that is off without a stated reason.

    Where a row has the paper's own counting convention, a column shows MACs counted so, and they are judged.
    """
    extra = list(dict.fromkeys(key for row in rows for key in row.published))
    paper_way = ["counted as paper"] if any(row.counted for row in rows) else []
    table = Table(title=title, caption="M parameters, G MACs at one image; 'paper' as printed")
    figures = ("params paper", "params ours", "MACs paper", "MACs ours", *paper_way)
    for name in ("table", "model", *figures, "difference", *extra):
        table.add_column(name, justify="left" if name in ("table", "model", "difference") else "right")
    wrong = []
    for row in rows:
        others = (row.published.get(key, "") for key in extra)
        if row.build is None:
            blank = ["", row.macs, "", *([""] if paper_way else []), row.differs]
            table.add_row(row.table, row.model, row.params, *blank, *others)
            continue
        ours, (params, macs) = row.both()
        fine = agrees(row.params, params) and agrees(row.macs, macs)
        note = row.differs or ("" if fine else "[red]off[/red]")
        if not fine and not row.differs:
            wrong.append(
                f"{row.table} {row.model}: paper {row.params} M {row.macs} G, ours {params:.3f} M {macs:.3f} G"
            )
        table.add_row(
            row.table, row.model, row.params, f"{params:.3f}", row.macs, f"{ours[1]:.3f}",
            *([f"{macs:.3f}"] if paper_way else []),
            f"{_difference(row.macs, macs)} {note}".strip(), *others,
        )  # fmt: skip
    return table, wrong


def _difference(printed: str, ours: float) -> str:
    return f"{(ours / float(printed) - 1) * 100:+.1f}%" if printed else ""
