"""leanformer eval --knn and --linear: how good a model's features are, whatever head it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    from ..train import Judgement, Probe


def judge_features(
    model: str,
    forms: Mapping[str, nn.Module],
    data: str,
    splits: tuple[str, str],
    knn: int | None,
    linear: bool,
    output: Path | None,
    methods: Sequence[str],
    how: Mapping[str, Any],
) -> None:
    """Print how often neighbours or a linear classifier name the right class, and write it down if asked.

    Args:
        model: The model's name.
        forms: The model in the forms to be judged, by name; the plain one's name is empty.
        data: The data set.
        splits: The part that is learnt from and the part that is judged.
        knn: How many neighbours vote; None: they are not asked.
        linear: Whether a linear classifier is trained.
        output: A JSON file for the figures.
        methods: What was applied to the model, as the command line wrote it.
        how: Options of `train.extract_features`.
    """
    from ..data.sources import open_data
    from ..measure import record, write_result
    from ..measure.terminal import console
    from ..train import extract_features, knn_accuracy, linear_probe
    from ..train.features import check_apart

    parts = [open_data(data, split) for split in splits]
    check_apart(parts[0], parts[1])
    found: dict[tuple[str, str], Judgement] = {}
    for form, each in forms.items():
        train, test = (extract_features(each, part, **how) for part in parts)
        if knn is not None:
            found[form, f"{knn}-NN"] = knn_accuracy(train, test, knn)
        if linear:
            found[form, "linear probe"] = linear_probe(train, test)
    out = console()
    out.print(_table(f"features of {model} on {data}", found))
    for (form, _), result in found.items():
        if hasattr(result, "sweep"):
            out.print(_sweep(form, result))  # type: ignore[arg-type]
    if output is not None:
        rows = [{"model": f"{model} {form}".strip(), "judge": judge, **result.summary()}
                for (form, judge), result in found.items()]  # fmt: skip
        about = {"data": Path(data).name, "images": len(test.labels), "known": len(train.labels),
                 "damaged": train.damaged + test.damaged, "methods": list(methods)}  # fmt: skip
        write_result(record("eval", rows, str(how["device"]), **about), output)


def _table(title: str, found: Mapping[tuple[str, str], Judgement]) -> Table:
    from rich.table import Table

    table = Table("", "judged by", "top-1", "top-5", "images", "learnt from", title=title, title_justify="left")
    for (form, judge), result in found.items():
        figures = f"{result.top1:.2f}%", f"{result.top5:.2f}%", str(result.images), str(result.known)
        table.add_row(form, judge, *figures)
    return table


def _sweep(form: str, probe: Probe) -> Table:
    from rich.table import Table

    title = f"linear probe{f' {form}' if form else ''}: learning rates, on training images held out"
    table = Table("rate", "top-1", "", title=title, title_justify="left")
    for rate, top1 in probe.sweep.items():
        table.add_row(f"{rate:g}", f"{top1:.2f}%", "taken" if rate == probe.rate else "")
    return table
