"""A published recipe: settings, the model and methods they were made for, and the accuracy that the paper got."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from torch import nn

from ..backbones import create, resize
from ..core import Method, apply, card_of, input_of, set_card, share
from ..core.card import card_json
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
    added: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the student alone: the checkpoint that it starts from and the teacher `self` are without them."""
    img_size: int | None = None
    """For fine-tuning at another size than that of the model it starts from."""
    schedule: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options of the recipe's methods for a model that was trained with them already, which has others: when a method
    acts, and what it imitates."""
    teacher: str = ""
    """What the paper distilled from, in words that `--teacher` understands but for the weights, parted by ' + '."""
    task: str = ""
    """What is learnt where it is not classification, as `--task` understands it."""
    top1: str = ""
    note: str = ""

    def build(self, **arguments: Any) -> nn.Module:
        """The model before training, methods applied; arguments of the backbone override the published ones.

        >>> import leanformer as lf
        >>> model = lf.recipes.PUBLISHED["evit_deit_small_0.7"].build(embed_dim=48, num_heads=3)
        >>> [method.name for method in lf.card_of(model).methods]
        ['evit']
        """
        return self.student(create(self.model, **{**self.arguments, **arguments}))

    def student(self, start: nn.Module, methods: tuple[Method, ...] = ()) -> nn.Module:
        """The model that is trained: `start` with what is added and the methods on it.

        Args:
            start: The recipe's backbone, with or without trained weights, or a model that has methods on it already.
            methods: Instead of the recipe's.
        """
        if card_of(start).methods:  # trained before, with what it needs
            return apply(self._rescheduled(start), *methods)
        return apply(extended(start, **self.added), *(methods or self.methods))

    def _rescheduled(self, start: nn.Module) -> nn.Module:
        """A model that has the recipe's methods on it already, each with the options that the recipe has for that."""
        if not self.schedule:
            return start
        card, names = card_of(start), {method.name for method in self.methods}
        methods = (each.replace(**self.schedule) if each.name in names else each for each in card.methods)
        return set_card(share(start), card.replace(methods=tuple(methods)))

    def sized(self, model: nn.Module) -> nn.Module:
        """A trained model at the image size that the recipe fine-tunes it for; as it is where the recipe says none.

        A model of the recipe's own backbone gets the recipe's other arguments as well, such as dropout in its head.

        Args:
            model: The model to start from, trained at another size.
        """
        if self.img_size is None or input_of(model)["input_size"][1:] == (self.img_size, self.img_size):
            return model
        card = card_of(model)
        if card.backbone and self.model.startswith(card.backbone):
            arguments = {**card.arguments, **self.arguments}
            model = set_card(share(model), card.replace(arguments=arguments))
        return resize(model, self.img_size)

    def refuse_alone(self, recipe: Recipe) -> None:
        """Refuse to train without any teacher where the paper distils: the labels alone would be learnt.

        Args:
            recipe: the settings of the run, which may name another objective.

        >>> import leanformer as lf
        >>> published = lf.recipes.PUBLISHED["sit_ti_cnn"]
        >>> published.refuse_alone(published.recipe)
        Traceback (most recent call last):
        ValueError: sit_ti_cnn is distilled: give --teacher self --teacher cnn=regnety_160:WEIGHTS, or an --objective
        """
        if self.teacher and recipe.objective == self.recipe.objective:
            parts = self.teacher.split(" + ")
            words = (f"--teacher {part}" if part == "self" else f"--teacher {part}:WEIGHTS" for part in parts)
            raise ValueError(f"{self.name} is distilled: give {' '.join(words)}, or an --objective")

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


def extended(model: nn.Module, **arguments: Any) -> nn.Module:
    """A copy of a backbone with further arguments: what it has keeps its weights, what is new starts fresh.

    Args:
        model: A backbone without methods.
        arguments: What is new, such as distilled=True for an LV-ViT.

    >>> import torch
    >>> small = create("lvvit", img_size=32, embed_dim=16, depth=1, num_heads=1)
    >>> new = extended(small, distilled=True)
    >>> torch.equal(new.cls_token, small.cls_token), new.num_prefix_tokens
    (True, 2)
    """
    if not arguments:
        return model
    new = create(card_of(model).backbone, **{**card_json(model)["arguments"], **arguments})
    weight = next(model.parameters())
    unknown = new.to(weight).load_state_dict(model.state_dict(), strict=False).unexpected_keys
    if unknown:
        raise ValueError(f"{card_of(model).backbone} with {arguments} has no place for {unknown[0]}")
    return new.train(model.training)


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
