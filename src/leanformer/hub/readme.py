"""The model card: what a model is, how to use it and what was measured of it, as Markdown for people.

Every figure comes from the model itself or from a result file, which also says how it was measured.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..core import card_of, classes_of, input_of
from ..measure import count, flat

Results = Sequence[str | os.PathLike[str] | Mapping[str, Any]]
COLUMNS = ("model", "mode", "batch", "dtype", "throughput", "latency_p50", "speedup", "top1", "parameters", "macs")
"""Of a result's rows, the columns that a card shows; those that no row has are left out."""
SHOWN_CLASSES = 10


def model_card(model: nn.Module, name: str, results: Results = (), license: str | None = None) -> str:
    """The text of a README.md for a model, with the block at its top that the hub reads.

    Args:
        model: A leanformer model.
        name: What the model is called, such as `someone/lean-vit`.
        results: Result files (or what they hold) of commands that measured the model: `bench`, `eval`, `lean`, `train`.
        license: Under which licence it is given away, in the hub's spelling, such as apache-2.0.

    >>> import leanformer as lf
    >>> tiny = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=2)
    >>> "library_name: leanformer" in model_card(tiny, "someone/tiny")
    True
    """
    card, tags = card_of(model), ["image-classification", "leanformer"]
    tags += sorted({method.name for method in card.methods})
    head = ["---", "library_name: leanformer", "pipeline_tag: image-classification"]
    head += [f"license: {license}"] if license else []
    head += ["tags:", *(f"- {tag}" for tag in tags), "---"]
    parts = ["\n".join(head), f"# {name}", _what(model), _facts(model), _use(name)]
    measured = [text for text in map(_result, results) if text]
    if measured:
        parts += ["## Measured", *measured]
    return "\n\n".join(parts) + "\n"


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table of Markdown.

    >>> print(markdown_table([{"model": "a|b", "top-1, %": 80.0}]))
    | model | top-1, % |
    | --- | --- |
    | a\\|b | 80 |
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([_text(row.get(key)) for key in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(value: Any) -> str:
    if isinstance(value, float):
        value = f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def _what(model: nn.Module) -> str:
    card = card_of(model)
    if not card.methods:
        return f"`{card.backbone}`{', fused' if card.fused else ''}, as a leanformer model."
    methods = " and ".join(f"`{method.name}`" for method in card.methods)
    return (
        f"`{card.backbone}` made lean with {methods}{' and fused' if card.fused else ''} by "
        "[leanformer](https://pypi.org/project/leanformer)."
    )


def _facts(model: nn.Module) -> str:
    card, config, classes = card_of(model), input_of(model), classes_of(model)
    counted = count(model)
    rows = [{"": "parameters", "value": f"{counted.parameters:,}"}]
    rows += [{"": "MACs an image", "value": f"{counted.macs / 1e9:.3f} G"}]
    rows += [{"": "input", "value": " x ".join(map(str, config["input_size"]))}]
    rows += [{"": key, "value": ", ".join(f"{part:.4g}" for part in config[key])} for key in ("mean", "std")]
    rows += [{"": "crop", "value": f"{config['crop_pct']:g} of the image, {config['interpolation']}"}]
    for method in card.methods:
        options = ", ".join(f"{key}={value}" for key, value in method.fields().items() if value is not None)
        rows.append({"": method.name, "value": options or "as by default"})
    if classes is not None:
        more = f" and {len(classes) - SHOWN_CLASSES} more" if len(classes) > SHOWN_CLASSES else ""
        rows.append({"": f"{len(classes)} classes", "value": "; ".join(classes[:SHOWN_CLASSES]) + more})
    return markdown_table(rows)


def _use(name: str) -> str:
    return (
        f'## Use\n\n```python\nimport leanformer as lf\n\nmodel = lf.hub.load("{name}")     # or a local folder\n'
        'lf.predict(model, "photos/").to_parquet("answers.parquet")\n```'
    )


def _result(result: str | os.PathLike[str] | Mapping[str, Any]) -> str:
    """One result as a table with how it was measured, whichever command wrote it."""
    told = (
        result
        if isinstance(result, Mapping)
        else read_json(Path(result), "is no result file: it does not hold rows or figures")
    )
    if "final" in told:  # plan.json of lean
        rows, about = _lean_rows(told["final"]), str(told.get("about", {}).get("place", ""))
    elif "rows" in told:
        rows = [{key: row[key] for key in COLUMNS if key in row} or flat(row) for row in told["rows"]]
        machine = told.get("hardware", {})
        about = ", ".join(filter(None, (machine.get("gpu") or machine.get("cpu"), told.get("command"))))
    else:  # result.json of a training run
        rows = [{"model": key, **flat(told[key])} for key in ("val", "ema") if isinstance(told.get(key), Mapping)]
        about = "on the validation images"
    return "\n\n".join(filter(None, (markdown_table(rows) if rows else "", about and f"Measured: {about}.")))


def _lean_rows(final: Mapping[str, Any]) -> list[dict[str, Any]]:
    before: dict[str, Any] = {"model": "before, optimised", "ms a batch": 1e3 * final["teacher_seconds"]}
    after: dict[str, Any] = {"model": "lean, optimised", "ms a batch": 1e3 * final["seconds"]}
    for key, title in {"top1": "top-1, %", "agreement": "agreement, %"}.items():
        if key in final:
            before[title], after[title] = final.get(f"teacher_{key}", 100.0), final[key]
    return [before, after]


def read_json(path: Path, otherwise: str) -> dict[str, Any]:
    """What a JSON file of names and values says.

    Args:
        path: The file.
        otherwise: What to tell of a file that holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} {otherwise}")
    return found
