"""python -m lab training-free: many ways to have fewer tokens on one trained model, judged without training."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table
from torch import nn

from leanformer.data import Data, check_fit, open_data
from leanformer.measure import choose, console, count, record, rows_to_resume, write_result
from leanformer.train import evaluate
from leanformer.visualise import trade_off

from .arguments import Set, open_model
from .studies.training_free import drawn, exported
from .studies.training_free import training_free as candidates_of


def training_free(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    data: str,
    checkpoint: Path | None = None,
    arguments: Set = (),
    split: str = "val",
    crop: float = 1.0,
    batch_size: int = 50,
    device: str = "cpu",
    only: str = "",
    figure: Path | None = None,
    output: Path | None = None,
) -> None:
    """EViT at many places, token merging at the same MACs, dtypes, and exported files, without training.

    Example: python -m lab training-free vit_tiny_patch16_224 --checkpoint vit_tiny.safetensors --data pack:nips17.npz

    Args:
        model: A model's name or a leanformer checkpoint.
        data: A folder of images, pack:PATH, hfds/PATH or wds/PATH.
        checkpoint: Weights for a model given by name.
        arguments: An argument of the model as name=value; may be given several times.
        split: Which part of the data.
        crop: The share of each picture that is looked at, in the middle; 1 for pictures that are cropped already.
        batch_size: Images at a time.
        device: cpu or cuda.
        only: Only the models whose name contains this text, or the one whose whole name it is; several texts are
            parted by |.
        figure: A .png or .svg file for accuracy against MACs.
        output: Write the result as JSON after each row; the same command goes on where it was interrupted. Result
            files of exports beside it are shown too.
    """
    opened = open_model(model, checkpoint, arguments).to(device)
    images = open_data(data, split)
    check_fit(opened, images)
    about = {"model": model, "methods": [], "data": Path(data).name, "images": len(images), "crop": crop}
    rows: list[dict[str, Any]] = rows_to_resume(output, about)
    candidates = list(candidates_of(opened))
    chosen = choose((each.model for each in candidates), only)
    names = [each.model for each in candidates]
    for each in candidates:
        if each.model not in chosen or any(row["model"] == each.model for row in rows):
            continue
        found = _accuracy(each.make(opened), images, crop, device, batch_size)
        rows.append({"family": each.family, "model": each.model, **found})
        rows.sort(key=lambda row: names.index(row["model"]) if row["model"] in names else len(names))
        if output is not None:
            write_result(record("sweep training_free", rows, device, **about), output)
    if output is not None:
        macs = count(opened).macs
        files = [{**row, "macs": macs} for row in exported(output.parent, model, data)]
        rows = [row for row in rows if row["family"] != "exported"] + files
        write_result(record("sweep training_free", rows, device, **about), output)
    console().print(table_of(model, rows))
    if figure is not None:
        console().print(f"wrote {trade_off(drawn(rows) or rows, x='macs', by='family').save(figure)}")


def _accuracy(model: nn.Module, images: Data, crop: float, device: str, batch_size: int) -> dict[str, Any]:
    found = evaluate(model, images, batch_size=batch_size, device=device, crop=crop)
    return {"top1": found.top1, "top5": found.top5, "macs": count(model).macs}


def table_of(model: str, rows: list[dict[str, Any]]) -> Table:
    """The rows as a table for people."""
    table = Table("family", "model", "top-1", "top-5", "MACs", title=f"{model}, without training")
    for row in rows:
        table.add_row(
            row["family"], row["model"], f"{row['top1']:.1f}", f"{row['top5']:.1f}", f"{row['macs'] / 1e9:.3f} G"
        )
    return table
