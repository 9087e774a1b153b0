"""Rows as tables for people."""

from collections.abc import Mapping, Sequence

from rich.table import Table


def as_table(title: str, lines: Sequence[Mapping[str, str]], left: Sequence[str] = ("student",)) -> Table:
    """Lines of column → text as a rich table, without the columns that nothing fills.

    Args:
        title: what stands above the table.
        lines: the rows; all columns that one of them has are shown.
        left: the columns that are read from the left; the others are figures.

    >>> [column.header for column in as_table("models", [{"model": "vit", "top-1": "80.0", "±": ""}]).columns]
    ['model', 'top-1']
    """
    table = Table(title=title, title_justify="left")
    columns = dict.fromkeys(column for line in lines for column, text in line.items() if text)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    for line in lines:
        table.add_row(*(line.get(column, "") for column in columns))
    return table


def number(value: float | None, how: str) -> str:
    """A number as text, nothing where there is none.

    >>> number(1.234, ".2f"), number(None, ".2f")
    ('1.23', '')
    """
    return "" if value is None else format(value, how)
