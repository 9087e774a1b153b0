"""What a family's file gives: how timm makes the same model, and its weights under timm's keys."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from ..keys import KeyMap

State = dict[str, Tensor]
IMAGENET: dict[str, Any] = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD}
HALF: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu",
               "relu": "relu", "silu": "silu", "swish": "silu"}  # fmt: skip
"""Activations as transformers' configs name them → as timm does."""


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A model of another library, told in our words."""

    name: str
    """The model that `lf.create` makes with `arguments`."""
    arguments: dict[str, Any]
    weights: State
    """All weights that count for the answer, under the keys of timm's model."""
    view: dict[str, Any] = field(default_factory=dict)
    """Normalisation and crop that the family's published weights were evaluated with."""
    classes: tuple[str, ...] | None = None
    answer: Callable[[Any], Tensor] = lambda output: output if isinstance(output, Tensor) else output.logits
    """What their model returns → the logits, or the features where it has no classifier."""


def renamed(state: Mapping[str, Tensor], keys: KeyMap, left_out: str = "") -> State:
    """The weights under other names, without those whose key matches the pattern `left_out`.

    Args:
        state: The weights as the other library names them.
        keys: The names here and there.
        left_out: A pattern of keys that do not count for the answer.
    """
    return {keys.ours(key): value for key, value in state.items() if not (left_out and re.search(left_out, key))}


def joined(state: State, parts: tuple[str, ...], whole: str) -> State:
    """Weights of layers side by side, such as q, k and v, as those of one layer with all their outputs.

    >>> sorted(joined({"0.q.bias": torch.ones(2), "0.k.bias": torch.ones(2)}, ("q", "k"), "qk").items())
    [('0.qk.bias', tensor([1., 1., 1., 1.]))]
    """
    new = dict(state)
    for key in state:
        layer, _, kind = key.rpartition(".")
        if layer.endswith(f".{parts[0]}"):
            stem = layer.removesuffix(parts[0])
            new[f"{stem}{whole}.{kind}"] = torch.cat([new.pop(f"{stem}{part}.{kind}") for part in parts])
    return new


def ratio(inner: int, outer: int) -> float:
    """The ratio from which timm computes exactly `inner` hidden channels: int(outer * ratio).

    >>> int(7 * ratio(23, 7))
    23
    """
    exact = inner / outer
    return exact if int(outer * exact) == inner else (inner + 0.5) / outer


def activation(name: Any) -> str:
    """timm's name of an activation of transformers."""
    if name not in ACTIVATIONS:
        raise ValueError(f"its activation '{name}' is not known; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def plain_size(size: Any) -> int | list[int]:
    """A size as cards keep it: a number, or height and width."""
    return size if isinstance(size, int) else [int(side) for side in size]


def label_names(config: Any) -> tuple[str, ...] | None:
    """The names of the classes in a config of transformers; None where it has only the numbers that it makes up."""
    names = tuple(str(config.id2label[index]) for index in sorted(config.id2label))
    return None if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names


def class_token(output: Any) -> Tensor:
    """The logits of transformers' output, or the class token of a model without a classifier."""
    return output.logits if hasattr(output, "logits") else output.last_hidden_state[:, 0]


def mean_token(output: Any) -> Tensor:
    """The logits of transformers' output, or the mean of the tokens of a model without a classifier."""
    return output.logits if hasattr(output, "logits") else output.last_hidden_state.mean(1)
