"""leanformer predict: the answers of a model to a picture, a folder or a billion images."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from .checks import only_with
from .common import AS_NAMED, Built, Model

if TYPE_CHECKING:
    from rich.table import Table

    from ..prediction import Predictions

SourceName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
Output = Annotated[str | None, tyro.conf.arg(metavar="PATH")]
"""A text and not a Path, which would lose the slash that says that a folder is meant."""
PRINTED = 100
"""Rows that are printed where no output is named."""
LONG = 24
"""Letters of a word that are printed of it."""


def predict(
    model: Model,
    source: SourceName,
    built: Built = AS_NAMED,
    output: Output = None,
    format: Literal["parquet", "csv", "jsonl"] | None = None,
    overwrite: bool = False,
    top: int = 5,
    probabilities: bool = False,
    embed: bool = False,
    embed_dtype: Literal["float16", "float32"] | None = None,
    kept: bool = False,
    classes: Path | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    optimized: bool | None = None,
    crop: float | None = None,
    score: float | None = None,
    workers: int | None = None,
    split: str | None = None,
    column: str | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    actors: int | None = None,
) -> int:
    """Classes and embeddings, boxes and masks, or label maps of many pictures, one row each, by the model's task.

    A run that was killed goes on where it was when the same command is given again.

    Example: leanformer predict lean.safetensors photos/ --output answers.parquet

    Example: leanformer predict detector.safetensors photos/ --score 0.3 --output boxes.jsonl

    Example: leanformer predict lean.safetensors "s3://bucket/shards/*.tar" --embed --top 0 --output vectors/

    Args:
        model: A model's name or a leanformer checkpoint.
        source: A picture, a folder, a pattern, a text file with one path a line, packs (.npz), WebDataset shards
            (.tar), Parquet with bytes or paths, or a Hugging Face data set on disk; at any address that fsspec knows.
        built: Methods, weights and arguments.
        output: A file that ends .parquet, .csv or .jsonl, or a folder for many part files, whose name ends with / or
            has no ending; without it a few rows are printed.
        format: Of the files in a folder; Parquet by default.
        overwrite: Begin anew where there is an output already.
        top: How many classes a row names; 0 leaves the classes out.
        probabilities: Add the probabilities of all classes.
        embed: Add the features before the head.
        embed_dtype: Of these features; float16 by default.
        kept: Add, for each patch, the number of the token that it is part of at the end, -1 where it was dropped.
        classes: A text file with the name of one class a line.
        batch_size: Images at a time; by default 8 on a CPU and 256 on a GPU, 2 and 8 for detectors and segmenters.
        device: cpu, cuda, …; the fastest there is on this machine by default. A cluster's machines must have it.
        dtype: In which the model computes; by default bfloat16 on a GPU and float32 on a CPU.
        optimized: Search for the fastest form first; by default on a GPU, for many pictures.
        crop: The share of each picture that is looked at, in the middle. By default what the model's card states.
        score: A detector's rows have the boxes above it; by default the threshold that it was built with.
        workers: Processes that read and decode; 0: none beside this one.
        split: Which split of a Hugging Face data set, or which of the folders in a folder.
        column: Which column of a table holds the pictures.
        engine: local, or ray for a cluster.
        address: Of the Ray cluster, for example auto; by default a new one on this machine.
        actors: Copies of the model in the cluster at most.
    """
    from ..measure.terminal import console
    from ..prediction import Cluster
    from ..prediction import predict as run

    only_with("--embed", embed, embed_dtype=embed_dtype)
    only_with("--output", output is not None, format=format, overwrite=overwrite)
    only_with("--engine ray", engine == "ray", address=address, actors=actors)
    answers = run(
        built.open(model),
        source,
        top=top,
        probabilities=probabilities,
        embed=embed and (embed_dtype or True),
        kept=kept,
        classes=None if classes is None else _lines(classes),
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        optimized=optimized,
        crop=crop,
        score=score,
        workers=workers,
        split=split,
        column=column,
        engine=engine,
        cluster=Cluster(address=address, actors=actors) if engine == "ray" else None,
    )
    out = console()
    if output is None:
        out.print(_printed(answers))
    else:
        answers.save(output, format, overwrite)
        out.print(f"wrote {output}", highlight=False)
    out.print(str(answers.report), highlight=False)
    return 1 if answers.report.rows and answers.report.failed == answers.report.rows else 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--classes: {path} cannot be read as text: {error}") from error


def _printed(answers: Predictions) -> Table:
    from rich.table import Table

    if len(answers) > PRINTED:
        raise ValueError(f"{len(answers)} rows are too many to print; name a file with --output answers.parquet")
    table = Table("path", *(field.name for field in answers.fields), "error")
    for row in answers:
        table.add_row(*map(_cell, row.values()))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, Iterable) and not isinstance(value, str):
        values = list(value)
        return " ".join(map(_short, values[:5])) + (" …" if len(values) > 5 else "")
    return str(value)


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value if len(value) < LONG else f"{value[:LONG]}…"
    if isinstance(value, Iterable):
        return f"({', '.join(f'{each:.0f}' for each in value)})"
    return f"{value:.3g}"
