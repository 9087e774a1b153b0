"""leanformer recipes: the published settings, with the figures that the papers got with them."""

from fnmatch import fnmatch
from typing import Annotated

import tyro


def recipes(pattern: Annotated[str, tyro.conf.Positional] = "*") -> None:
    """Published recipes with their models, and the accuracies of the papers; one recipe's name shows its settings.

    Example: leanformer recipes '*deit_small*'

    Args:
        pattern: Show only the recipes whose name matches; * stands for anything.
    """
    from rich.table import Table

    from ..measure.terminal import console
    from ..papers.recipes import PRESETS, PUBLISHED, find, parse_recipe

    one = find(pattern)
    if one is not None or pattern in PRESETS:
        settings = Table("setting", "value", title=pattern, title_justify="left")
        if one is not None:
            texts = " ".join(one.argument_texts()), " + ".join(one.method_texts()), one.task
            for name, text in zip(("model", "arguments", "methods", "task"), (one.model, *texts), strict=True):
                if text:
                    settings.add_row(name, text)
        for name, value in parse_recipe(pattern).to_json().items():
            settings.add_row(name, str(value))
        console().print(settings)
        if one is not None:
            console().print(one.note)
        return
    found = [p for p in PUBLISHED.values() if fnmatch(p.name, pattern)]
    if not found:
        raise ValueError(f"no recipe matches '{pattern}'; leanformer recipes lists all")
    columns = ("recipe", "model", "methods", "teacher", "epochs", "batch", "lr", "top-1 (paper)")
    table = Table(*columns, title=f"{len(found)} published recipes, and {', '.join(PRESETS)}", title_justify="left")
    for p in found:
        table.add_row(
            p.name, p.model, " + ".join(p.method_texts()), p.teacher, str(p.recipe.epochs), str(p.recipe.batch_size),
            f"{p.recipe.learning_rate:g}", p.top1,
        )  # fmt: skip
    console().print(table)
