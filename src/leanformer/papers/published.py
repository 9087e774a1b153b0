"""A published recipe: settings, the model and methods they were made for, and the accuracy that the paper got."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from torch import nn

from ..backbones import create
from ..core import Method, apply
from ..train.recipe import Recipe

DEIT = Recipe(repeats=3, ema=0.99996)
"""DeiT's augmentation with repeated augmentation, on which EViT, RePa and SiT build."""
PUBLISHED: dict[str, "Published"] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """One model of a paper. `top1` is as printed there; `note` says where the settings stand and what is open."""

    name: str
    model: str
    recipe: Recipe
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    methods: tuple[Method, ...] = ()
    teacher: str = ""
    """What the paper distilled from, in words that `--teacher` understands but for the weights."""
    top1: str = ""
    note: str = ""

    def build(self, **arguments: Any) -> nn.Module:
        """The model before training, methods applied; arguments of the backbone override the published ones.

        >>> import leanformer as lf
        >>> model = lf.recipes.PUBLISHED["evit_deit_small_0.7"].build(embed_dim=48, num_heads=3)
        >>> [method.name for method in lf.card_of(model).methods]
        ['evit']
        """
        return apply(create(self.model, **{**self.arguments, **arguments}), *self.methods)

    def argument_texts(self) -> tuple[str, ...]:
        """The backbone's arguments as the command line writes them."""
        return tuple(f"{key}={value!r}" for key, value in self.arguments.items())

    def method_texts(self) -> tuple[str, ...]:
        """The methods as the command line writes them, without the options that are the defaults.

        >>> import leanformer as lf
        >>> lf.recipes.PUBLISHED["evit_deit_small_0.5"].method_texts()
        ('evit:keep_rate=0.5',)
        """
        return tuple(_text(method) for method in self.methods)


def publish(recipes: Iterable[Published]) -> None:
    """Make recipes known by name."""
    for one in recipes:
        assert one.name not in PUBLISHED, one.name
        PUBLISHED[one.name] = one


def _text(method: Method) -> str:
    chosen = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    usual = {f.name: f.default for f in dataclasses.fields(method)}
    options = ",".join(f"{name}={value}" for name, value in chosen.items() if value != usual[name])
    return f"{method.name}:{options}" if options else method.name
