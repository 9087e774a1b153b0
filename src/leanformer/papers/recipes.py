"""Recipes: published settings of every model in the five papers, and presets for fine-tuning.

lf.recipes.finetune(epochs=30)                  a trained backbone made lean, distilled
lf.recipes.parse_recipe("evit_deit_small_0.7:epochs=100")
"""

import re

from ..train.finetune import finetune
from ..train.recipe import Recipe, plain
from . import evit, lvvit, metaformer, repa, riformer, sit  # noqa: F401  (they publish themselves)
from .published import PUBLISHED, Published

PRESETS = {"finetune": finetune, "plain": plain}


def find(spec: str) -> Published | None:
    """The published recipe that a spec names, settings behind a colon left aside; None for a preset or no name.

    >>> find("evit_deit_small_0.7:epochs=3").top1
    '79.5'
    """
    return PUBLISHED.get(spec.partition(":")[0])


def parse_recipe(spec: str) -> Recipe:
    """A recipe written as on the command line: `name` or `name:setting=value,setting=value`.

    >>> parse_recipe("finetune:epochs=5,batch_size=64").batch_size
    64
    """
    name, _, rest = spec.partition(":")
    if name in PUBLISHED:
        recipe = PUBLISHED[name].recipe
    elif name in PRESETS:
        recipe = _preset(name, rest)
    else:
        raise ValueError(f"unknown recipe '{name}'; presets: {', '.join(PRESETS)}; leanformer recipes lists all")
    return recipe.with_settings(_settings(rest))


def _preset(name: str, rest: str) -> Recipe:
    """A preset's other settings follow its number of epochs."""
    epochs = [s.partition("=")[2] for s in _settings(rest) if s.partition("=")[0].strip() == "epochs"]
    return PRESETS[name](epochs=int(epochs[-1])) if epochs else PRESETS[name]()


def _settings(rest: str) -> list[str]:
    return re.split(r",(?=\s*\w+\s*=)", rest) if rest else []


__all__ = ["PUBLISHED", "Published", "Recipe", "find", "finetune", "parse_recipe", "plain"]
