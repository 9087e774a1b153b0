"""A classifier for other classes; the rows of those that the model knows already are kept."""

import copy
from collections.abc import Sequence
from typing import Any

from timm.data import ImageNetInfo
from torch import nn

from ..core import Card, classes_of, plain_of, set_classes

IMAGENET = 1000
"""Classes of ImageNet-1k, whose names a model with so many outputs need not tell."""


def with_head(model: Any, num_classes: int, names: Sequence[str] | None = None) -> nn.Module:
    """A copy of the model with a head for so many classes; the model given stays as it is.

    Where there is a name for each class and the model knows all of them, their rows are kept in each of its heads;
    otherwise the heads are fresh. A model knows the classes on its card, or ImageNet-1k's WordNet ids where it has 1000
    outputs and no names.

    Args:
        model: A leanformer or timm model; of an optimised one the plain form is taken.
        num_classes: Outputs of the new head; 0 takes the head off.
        names: Names of the new classes in their order; they go onto the card.

    >>> import torch
    >>> import leanformer as lf
    >>> vit = lf.create("vit", depth=1, embed_dim=8, num_heads=1, num_classes=1000)
    >>> row = vit.head.weight[1]
    >>> torch.equal(with_head(vit, 2, ["n01440764", "n01443537"]).head.weight[1], row)
    True
    """
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 0:
        raise ValueError(f"a head has a number of classes, 0 or more, not {num_classes!r}")
    known = _rows(model)
    new: Any = copy.deepcopy(plain_of(model))
    if names and len(names) == num_classes and knows_classes(model, names):
        _choose_rows(new, [known[name] for name in names], len(known))
    else:
        new.reset_classifier(num_classes)
    if not isinstance(getattr(new, "card", None), Card):
        return new
    if names is not None and len(names) == num_classes:
        return set_classes(new, names)
    return new if classes_of(new) is not None else set_classes(new, None)


def knows_classes(model: nn.Module, names: Sequence[str] | None) -> bool:
    """Whether a model has rows for all of these classes, which a head for them keeps; without names nobody can tell.

    Args:
        model: A leanformer or timm model.
        names: Names of the classes.

    >>> import leanformer as lf
    >>> vit = lf.create("vit", depth=1, embed_dim=8, num_heads=1, num_classes=1000)
    >>> knows_classes(vit, ["n01440764"]), knows_classes(vit, ["apple"])
    (True, False)
    """
    return bool(names) and _rows(model).keys() >= set(names or ())


def _rows(model: nn.Module) -> dict[str, int]:
    """The rows of a model's classes in its head, by name; none where nobody can tell what they are."""
    names = classes_of(model)
    if names is None and getattr(plain_of(model), "num_classes", None) == IMAGENET:
        names = ImageNetInfo("imagenet-1k").label_names()
    return {name: index for index, name in enumerate(names or ())}


def _choose_rows(model: Any, rows: list[int], classes: int) -> None:
    """Give a model of so many classes heads for these of them; fresh heads where it has another number of outputs.

    A head may have layers before its last one, and a model several heads. What has a row for each class is what
    changes with their number.
    """
    old = model.state_dict()
    model.reset_classifier(classes + 1)
    other = model.state_dict()
    model.reset_classifier(len(rows))
    if old.keys() != other.keys():  # a head of another kind, or none
        return
    by_class = [key for key, value in other.items() if value.shape != old[key].shape]
    if by_class and all(len(old[key]) == classes for key in by_class):
        model.load_state_dict({key: value[rows] if key in by_class else value for key, value in old.items()})
