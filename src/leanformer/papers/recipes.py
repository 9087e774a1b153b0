"""Recipes: published settings of every model in the five papers, and presets for fine-tuning.

lf.recipes.finetune(epochs=30)                  a trained backbone made lean, distilled
lf.recipes.dense(), pets(), camvid()            detectors and segmenters
lf.recipes.parse_recipe("evit_deit_small_0.7:epochs=100")
"""

from ..core.spec import parse_spec
from ..tasks import dino
from ..tasks.recipes import camvid, dense, pets
from ..train.finetune import finetune
from ..train.recipe import Recipe, plain
from . import evit, lvvit, metaformer, repa, riformer, sit  # noqa: F401  (they publish themselves)
from .published import PUBLISHED, Published
from .repa.dense import ade20k_upernet, coco_1x

PRESETS = {"finetune": finetune, "plain": plain, "dense": dense, "pets": pets, "camvid": camvid, "dino": dino.recipe}
PRESETS |= {"coco_1x": coco_1x, "ade20k_upernet": ade20k_upernet}


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
    name, settings = parse_spec(spec)
    if name in PUBLISHED:
        recipe = PUBLISHED[name].recipe
    elif name in PRESETS:  # other settings of a preset follow its number of epochs
        epochs = settings.get("epochs")
        recipe = PRESETS[name](epochs=epochs) if isinstance(epochs, int) else PRESETS[name]()
    else:
        raise ValueError(f"unknown recipe '{name}'; presets: {', '.join(PRESETS)}; leanformer recipes lists all")
    return recipe.replace(**settings)


__all__ = [
    "PUBLISHED",
    "Published",
    "Recipe",
    "ade20k_upernet",
    "camvid",
    "coco_1x",
    "dense",
    "find",
    "finetune",
    "parse_recipe",
    "pets",
    "plain",
]
