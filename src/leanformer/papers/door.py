"""Official checkpoints in, official checkpoints out.

A converter knows one official class: how to build our model from its config, and how its keys become ours and back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..backbones.keys import KeyMap
from ..backbones.weights import load_weights, unpacked
from ..core import card_of, plain_of, set_card

State = dict[str, Tensor]


@dataclass(frozen=True)
class Converter:
    """One official class. `build` sees the config and the state dict, whose keys tell trained from fused form."""

    system: str
    official: str
    """A part of the official class's name that no other has, e.g. 'evit.EViT'."""
    build: Callable[[dict[str, Any], State], nn.Module]
    ours: Callable[[State, nn.Module], State]
    theirs: Callable[[State, nn.Module], State]
    method: str = ""
    """The method that makes a backbone into this class: models with it on them go out in this class's form."""
    serves: Callable[[nn.Module], bool] = lambda model: True
    """Whether a model with the method on it is of this class, where several classes have the method."""


CONVERTERS: list[Converter] = []
RELEASED: dict[str, tuple[str, dict[str, Any]]] = {}
"""Name of a released model → its official class and config."""


def from_official(official: str, config: dict[str, Any] | None = None, state_dict: State | None = None) -> nn.Module:
    """Our model with an official checkpoint's weights, in evaluation mode.

    `official` and `config` are the official class and its constructor's arguments, or `official` is the name of a
    released model. A state dict in fused (deploy, reparameterised) form gives a fused model. The whole content of a
    file that has it under a name such as `model` or `state_dict` will do too.

    >>> import leanformer as lf
    >>> lf.from_official("poolformer_s12", state_dict=torch.load("poolformer_s12.pth.tar"))  # doctest: +SKIP
    """
    if state_dict is None:
        raise ValueError("from_official needs the state_dict of the official checkpoint")
    if official in RELEASED:
        released, defaults = RELEASED[official]
        official, config = released, {**defaults, **(config or {})}
    converter, source = _converter(official), f"the state dict of {official}"
    state_dict = unpacked(state_dict, source)
    model = converter.build(dict(config or {}), state_dict)
    load_weights(model, converter.ours(dict(state_dict), model), source=source)
    origin = {"official": official, "config": dict(config or {})}
    return set_card(model, card_of(model).replace(official=origin)).eval()


def read_official(name: str, state_dict: State, model: nn.Module) -> State:
    """The weights of a released model, or of one with other classes or images, under our keys.

    Args:
        name: The released model, such as lvvit_s.
        state_dict: Its weights under the official keys.
        model: Our model of that name, which they are for.
    """
    return _converter(RELEASED[name][0]).ours(dict(state_dict), model)


def to_official(model: nn.Module) -> State:
    """The weights of a model that has an official form, under the official keys.

    >>> import leanformer as lf
    >>> state = lf.to_official(lf.create("poolformer_s12"))  # doctest: +SKIP
    """
    model = plain_of(model)
    card = card_of(model)
    methods = [method.name for method in card.methods]
    made_by = [c.official for c in CONVERTERS if c.method in methods and c.serves(model)]
    if len(made_by) == 1:
        official = made_by[0]
    elif card.official is not None:
        official = card.official["official"]
    elif card.backbone in RELEASED:
        official = RELEASED[card.backbone][0]
    else:
        named = f"{card.backbone} with {', '.join(methods)}" if methods else card.backbone
        raise ValueError(f"{named} has no official form; those that have: {', '.join(sorted(RELEASED))}")
    return _converter(official).theirs(dict(model.state_dict()), model)


def _converter(official: str) -> Converter:
    found = [c for c in CONVERTERS if c.official in official]
    if len(found) != 1:
        known = ", ".join([c.official for c in CONVERTERS] + sorted(RELEASED))
        raise ValueError(f"unknown official model '{official}'; known: {known or 'none yet'}")
    return found[0]


def take(config: dict[str, Any], *names: str) -> dict[str, Any]:
    """Those of the options that have these names; they leave `config`."""
    return {name: config.pop(name) for name in names if name in config}


def refuse_options(left: dict[str, Any], neutral: dict[str, Any], ours: str) -> None:
    """Refuse official options that have no counterpart, unless they are at the value that changes nothing.

    Args:
        left: The options that were not understood.
        neutral: Option → the value that changes nothing; None never does.
        ours: What the message calls our model.
    """
    for key, value in left.items():
        value = tuple(value) if isinstance(value, list) else value
        if value is not None and value != neutral.get(key):
            raise ValueError(f"the official option {key}={value!r} has no counterpart in our {ours}")


VIT_BLOCKS = KeyMap(
    [
        ("blocks.{i}.norm1.{*}", "blocks.{i}.mix.norm.{*}"),
        ("blocks.{i}.attn.{*}", "blocks.{i}.mix.fn.{*}"),
        ("blocks.{i}.norm2.{*}", "blocks.{i}.ffn.norm.{*}"),
        ("blocks.{i}.mlp.{*}", "blocks.{i}.ffn.fn.{*}"),
    ]
)
"""A ViT's blocks as timm, DeiT, EViT and LV-ViT name their parts."""
