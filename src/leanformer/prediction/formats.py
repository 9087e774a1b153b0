"""How rows are written: Parquet, CSV, JSON lines; each writes a whole part at once and joins parts into one file."""

import base64
import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .answers import Field
from .running import ResultBatch

ROW_GROUP = 65_536
"""Rows of a row group in a Parquet file made of many parts."""


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        ending: Of its files' names.
        write: (path, batches, fields, metadata) writes one file.
        join: (path, parts, metadata) makes one file of several, in their order.
    """

    ending: str
    write: Callable[[str, Sequence[ResultBatch], Sequence[Field], dict[str, str]], None]
    join: Callable[[str, Sequence[Path], dict[str, str]], None]


def format_of(path: str | os.PathLike[str], asked: str | None = None) -> Format:
    """The format that was asked for, or that a file's name ends like; Parquet for a folder.

    Args:
        path: The output.
        asked: parquet, csv or jsonl.
    """
    usual = ".parquet" if is_folder(path) else Path(path).suffix.lower()
    ending = "." + asked.removeprefix(".") if asked else usual
    if ending not in FORMATS:
        raise ValueError(
            f"rows cannot be written as '{ending}'; known: {', '.join(FORMATS)}; the name of a folder ends with /"
        )
    if ending == ".parquet":
        require_pyarrow()
    return FORMATS[ending]


def is_folder(output: str | os.PathLike[str]) -> bool:
    """Whether an output is a folder for part files: its name ends with a slash, or has no ending.

    Args:
        output: A name as the user gave it; a Path has lost its slash.

    >>> is_folder("vectors"), is_folder("vectors_v1.5/"), is_folder("answers.csv")
    (True, True, False)
    """
    return os.fspath(output).endswith("/") or not Path(output).suffix


def require_pyarrow() -> None:
    """Refuse to go on without pyarrow, with the line that installs it."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ValueError("Parquet needs pyarrow; install with: pip install 'leanformer[predict]'") from error


def arrow_table(batches: Sequence[ResultBatch], fields: Sequence[Field], metadata: dict[str, str]) -> Any:
    """The rows as a table of pyarrow; answers are null in rows with an error.

    Args:
        batches: Rows that follow each other.
        fields: The columns of the task.
        metadata: What the schema says of the model and the run.
    """
    import pyarrow as pa

    errors = [_utf8(error) for batch in batches for error in batch.errors]
    bad = np.array([error is not None for error in errors], bool)  # (rows,)
    arrays = [pa.array([_utf8(key) for batch in batches for key in batch.keys], pa.string())]
    arrays += [_arrow_column(field, [batch.columns[field.name] for batch in batches], bad) for field in fields]
    arrays.append(pa.array(errors, pa.string()))
    names = ["path", *(field.name for field in fields), "error"]
    schema = pa.schema([pa.field(name, array.type) for name, array in zip(names, arrays)], metadata=metadata)
    return pa.Table.from_arrays(arrays, schema=schema)


def _arrow_type(kind: str, shape: tuple[int | None, ...]) -> Any:
    import pyarrow as pa

    if not shape:
        named = {"text": pa.string(), "bytes": pa.binary()}
        return named.get(kind) or pa.from_numpy_dtype(np.dtype(kind))
    inner = _arrow_type(kind, shape[1:])
    return pa.list_(inner) if shape[0] is None else pa.list_(inner, shape[0])


def _arrow_column(field: Field, parts: Sequence[Any], bad: np.ndarray) -> Any:
    import pyarrow as pa

    kind = _arrow_type(field.kind, field.shape)
    if field.kind in ("text", "bytes") or len(field.shape) > 1 or None in field.shape:
        values = [value.tolist() if isinstance(value, np.ndarray) else value for part in parts for value in part]
        values = [_utf8(value) for value in values] if field.kind == "text" else values
        return pa.array([None if wrong else value for value, wrong in zip(values, bad.tolist())], kind)
    whole = np.concatenate([np.asarray(part, field.kind) for part in parts])  # (rows,) or (rows, n)
    if not field.shape:
        return pa.array(whole, kind, mask=bad)
    return pa.FixedSizeListArray.from_arrays(pa.array(whole.reshape(-1)), type=kind, mask=pa.array(bad))


def _utf8(text: Any) -> Any:
    """Text, or lists of it, with what is not UTF-8 (as in some names of files) escaped as in the other formats."""
    if isinstance(text, list):
        return [_utf8(each) for each in text]
    return text if text is None else text.encode(errors="backslashreplace").decode()


def _write_parquet(path: str, batches: Sequence[ResultBatch], fields: Sequence[Field], about: dict[str, str]) -> None:
    import pyarrow.parquet as parquet

    table = arrow_table(batches, fields, about)
    parquet.write_table(table, path, row_group_size=ROW_GROUP, **_encoding(table.schema))


def _encoding(schema: Any) -> dict[str, Any]:
    """How columns are packed: vectors as they are, since their numbers do not repeat; the rest as usual."""
    import pyarrow as pa

    plain = {column.name for column in schema if pa.types.is_fixed_size_list(column.type)}
    other = [column.name for column in schema if column.name not in plain]
    packed = {name: "none" if name in plain else "snappy" for name in schema.names}
    return {"use_dictionary": other, "write_statistics": other, "compression": packed}


def _join_parquet(path: str, parts: Sequence[Path], about: dict[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    schema = parquet.read_schema(parts[0]).with_metadata(about)
    with parquet.ParquetWriter(path, schema, **_encoding(schema)) as writer:
        held: list[Any] = []
        for part in parts:
            held.append(parquet.ParquetFile(part).read().replace_schema_metadata(about))
            if sum(map(len, held)) >= ROW_GROUP:
                writer.write_table(pa.concat_tables(held), row_group_size=ROW_GROUP)
                held = []
        if held:
            writer.write_table(pa.concat_tables(held), row_group_size=ROW_GROUP)


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it: lists in the place of arrays, base64 in that of bytes."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.tolist() if isinstance(value, np.ndarray) else value


def _write_lines(path: str, batches: Sequence[ResultBatch], fields: Sequence[Field], about: dict[str, str]) -> None:
    with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        for batch in batches:
            for row in batch.rows():
                file.write(json.dumps(plain_row(row), ensure_ascii=False) + "\n")


def _write_csv(path: str, batches: Sequence[ResultBatch], fields: Sequence[Field], about: dict[str, str]) -> None:
    """Rows below a head line; vectors, boxes and names are JSON lists in their cell."""
    with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path", *(field.name for field in fields), "error"])
        for batch in batches:
            for row in batch.rows():
                writer.writerow([json.dumps(v) if isinstance(v, list) else v for v in plain_row(row).values()])


def _join_lines(path: str, parts: Sequence[Path], about: dict[str, str]) -> None:
    _join_text(path, parts, heads=False)


def _join_csv(path: str, parts: Sequence[Path], about: dict[str, str]) -> None:
    _join_text(path, parts, heads=True)


def _join_text(path: str, parts: Sequence[Path], heads: bool) -> None:
    """One file after the other; of files with a head line, that of the first alone."""
    with open(path, "wb") as whole:
        for number, part in enumerate(parts):
            with open(part, "rb") as file:
                if heads and number:
                    file.readline()
                shutil.copyfileobj(file, whole, io.DEFAULT_BUFFER_SIZE * 64)


FORMATS = {
    ".parquet": Format(".parquet", _write_parquet, _join_parquet),
    ".csv": Format(".csv", _write_csv, _join_csv),
    ".jsonl": Format(".jsonl", _write_lines, _join_lines),
}
