"""A checkpoint is one safetensors file whose metadata says how to rebuild the model: the card.

Nothing in the file is executed on loading: tensors are raw bytes and the card is JSON that is checked field by field.
"""

import contextlib
import dataclasses
import json
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from timm.layers import to_2tuple
from torch import Tensor, nn

from .._version import __version__
from .checked import check_classes, check_view, one_line
from .files import check_file
from .inputs import image_size, input_of, pooling_of
from .method import METHODS, Method, method_from, plain
from .optimised import plain_of

FORMAT = 1
KEY = "leanformer"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """How a model came to be: the backbone and its arguments, the methods on it, fused or not."""

    backbone: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    methods: tuple[Method, ...] = ()
    fused: bool = False
    official: dict[str, Any] | None = None
    """Class and config of the official model that the weights came from, for the way back."""
    global_pool: str | None = None
    """The pooling that a checkpoint was written with; None: as the arguments have it."""
    classes: tuple[str, ...] | None = None
    """Names of the classes in the order of the outputs, as the data set has them; None where nobody said."""
    input: dict[str, Any] | None = None
    """Normalisation and crop that a checkpoint was written with; None: as the backbone has them."""
    optimised: dict[str, Any] | None = None
    """How `lf.optimize` made the model fast: steps, graph, batch, size, dtype and device; None for a plain model."""
    claims: dict[str, str] = dataclasses.field(default_factory=dict)
    """Slot path → name of the method that holds it; follows from the methods, so it is not written to files."""

    def replace(self, **changes: Any) -> "Card":
        return dataclasses.replace(self, **changes)


def card_of(model: nn.Module) -> Card:
    """The card of a model that `create`, `adopt`, `apply`, `fuse` or `load` made.

    >>> import leanformer as lf
    >>> card_of(lf.create("deit_tiny_patch16_224")).backbone
    'deit_tiny_patch16_224'
    """
    card = getattr(model, "card", None)
    if not isinstance(card, Card):
        raise ValueError(f"{type(model).__name__} is not a leanformer model; pass it through lf.adopt first")
    return card


def set_card(model: nn.Module, card: Card) -> nn.Module:
    """Write a new card onto a model and return the model.

    >>> set_card(nn.Linear(2, 2), Card(backbone="vit")).card.backbone
    'vit'
    """
    model.card = card  # type: ignore[assignment]
    return model


def set_classes(model: nn.Module, names: Sequence[str] | None) -> nn.Module:
    """Write the names of a model's classes onto its card and return the model; None takes them off.

    Args:
        model: A leanformer model.
        names: One name for each output, in their order; WordNet ids are shown as words.

    >>> import leanformer as lf
    >>> classes_of(set_classes(lf.create("deit_tiny_patch16_224", depth=1, num_classes=2), ["cat", "dog"]))
    ('cat', 'dog')
    """
    names = check_classes(names, getattr(model, "num_classes", None))
    return set_card(model, card_of(model).replace(classes=names))


def classes_of(model: nn.Module) -> tuple[str, ...] | None:
    """The names of a model's classes, where it has a card with one for each of its outputs; else None.

    >>> import leanformer as lf
    >>> classes_of(lf.create("deit_tiny_patch16_224", depth=1)) is None
    True
    """
    card = getattr(model, "card", None)
    names = card.classes if isinstance(card, Card) else None
    return names if names is not None and len(names) == getattr(model, "num_classes", len(names)) else None


def save(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write weights and card to one safetensors file, which `load` turns into the same model again.

    >>> import leanformer as lf
    >>> lf.save(lf.create("deit_tiny_patch16_224", depth=1), "lean.safetensors")  # doctest: +SKIP
    """
    card = _text(model)
    tensors = {key: value.detach().contiguous().cpu() for key, value in plain_of(model).state_dict().items()}
    if len({value.untyped_storage().data_ptr() for value in tensors.values()}) < len(tensors):
        # a parameter that stands at two places is written twice, and loaded into both
        tensors = {key: value.clone() for key, value in tensors.items()}
    _check_rebuilds(model, card, tensors)
    return write_atomically(path, lambda temporary: save_file(tensors, temporary, {KEY: card, "format": "pt"}))


CHECKS: list[Callable[[Card, dict[str, Tensor], str], None]] = []
"""Asked by `save` whether a card describes these tensors, before anything is written; backbones know how."""


def _check_rebuilds(model: nn.Module, card: str, tensors: dict[str, Tensor]) -> None:
    """Refuse to write what `load` would refuse to read."""
    try:
        for check in CHECKS:
            check(_from_json(json.loads(card)), tensors, "its file")
    except ValueError as error:
        raise ValueError(
            f"this {type(model).__name__} was changed since it was made, and lf.load could not make it again: {error}"
        ) from error


def _text(model: nn.Module) -> str:
    try:
        return json.dumps(card_json(model))
    except TypeError as error:
        raise ValueError(
            f"{card_of(model)} cannot be written as JSON, so the model cannot be saved: {error}"
        ) from error


def write_atomically(path: str | os.PathLike[str], write: Callable[[str], Any]) -> Path:
    """Call `write` with a temporary name beside `path`, then rename: a reader never sees half a file.

    >>> write_atomically("note.txt", lambda name: Path(name).write_text("whole"))  # doctest: +SKIP
    """
    path = Path(path)
    temporary = str(path.with_name(f".{path.name}.{secrets.token_hex(4)}"))
    try:
        with open(temporary, "xb") as file:
            mode = os.fstat(file.fileno()).st_mode
        write(temporary)
        os.chmod(temporary, mode)  # some writers make files that nobody else may read
        _to_disk(temporary)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        with contextlib.suppress(OSError):  # mostly it is not there any more
            os.unlink(temporary)
    return path


def _to_disk(path: str) -> None:
    """Wait until a file is on the disk: a rename that outlives a power cut must not name an empty file."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def read(path: str | os.PathLike[str]) -> tuple[Card, dict[str, Tensor]]:
    """The card and the tensors of a checkpoint, with a clear error for anything that is not one."""
    path = check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {one_line(error)}") from error
    if KEY not in metadata:
        raise ValueError(
            f"{path} has weights but no leanformer card; give them to lf.create(name, checkpoint='{path}') instead"
        )
    try:
        return _from_json(json.loads(metadata[KEY])), tensors
    except (json.JSONDecodeError, RecursionError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"the card in {path} is damaged: {type(error).__name__} {one_line(error)}") from error


def has_card(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a checkpoint that `save` wrote; weights without a card are for `create`.

    >>> has_card("weights.pth")
    False
    """
    try:
        with safe_open(check_file(path), framework="pt") as file:
            return KEY in (file.metadata() or {})
    except (SafetensorError, OSError, ValueError):
        return False


def card_json(model: nn.Module) -> dict[str, Any]:
    """The card as plain JSON values, with the model's input and classes: what files say of themselves.

    >>> import leanformer as lf
    >>> card_json(lf.create("deit_tiny_patch16_224"))["num_classes"]
    1000
    """
    card, data, classes, model = card_of(model), input_of(model), classes_of(model), plain_of(model)
    if not card.backbone:
        raise ValueError(
            f"this {type(model).__name__} cannot be rebuilt from a name, so it cannot be saved; "
            "make it with lf.create(name, ...), or give lf.adopt its name and arguments"
        )
    return {
        "format": FORMAT,
        "backbone": card.backbone,
        "arguments": {name: plain(value) for name, value in (card.arguments | _changed(model, card)).items()},
        "methods": [{"name": m.name, "version": m.version, "options": m.fields()} for m in card.methods],
        "fused": card.fused,
        "official": card.official,
        "optimised": card.optimised,
        "num_classes": getattr(model, "num_classes", None),
        "classes": plain(classes),
        "global_pool": pooling_of(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "input": {key: plain(value) for key, value in data.items()},
        "versions": versions(),
    }


def _changed(model: nn.Module, card: Card) -> dict[str, Any]:
    """The arguments that make the model as it is now: it may have got another head or input size since it was made."""
    changed: dict[str, Any] = {"num_classes": model.num_classes} if hasattr(model, "num_classes") else {}
    made = card.arguments.get("img_size") or getattr(model, "pretrained_cfg", {}).get("input_size", (0, 0, 0))[1:]
    now = image_size(model)
    if now is not None and to_2tuple(now) != to_2tuple(made):
        if not hasattr(model, "pos_embed"):  # other windows, which the size alone does not tell
            raise ValueError(
                f"this {type(model).__name__} was resized from {made} to {now} after it was made, so it cannot be "
                "rebuilt; make it with lf.create(name, img_size=..., window_size=...)"
            )
        changed["img_size"] = list(to_2tuple(now))
    return changed


def _method(name: str, options: dict[str, Any]) -> Method:
    """A method as its card has it. Earlier versions took places in any order, and values in that of rising places."""
    places = {key: sorted(options[key]) for key in ("at", "blocks", "stages") if isinstance(options.get(key), list)}
    try:
        return method_from(name, options)
    except ValueError:
        if places.items() <= options.items():
            raise
    return method_from(name, {**options, **places})


def _from_json(data: dict[str, Any]) -> Card:
    kinds = {"format": int, "backbone": str, "arguments": dict, "methods": list, "fused": bool}
    for field, kind in kinds.items():
        if not isinstance(data[field], kind):
            raise TypeError(f"'{field}' is {data[field]!r}, not of type {kind.__name__}")
    for field, kind in {"official": dict, "global_pool": str, "optimised": dict}.items():
        if not isinstance(data.get(field), kind | None):
            raise TypeError(f"'{field}' is {data[field]!r}, not of type {kind.__name__}")
    if data["format"] > FORMAT:
        raise ValueError(f"the card is of format {data['format']}, this leanformer reads up to {FORMAT}: update it")
    methods = []
    for entry in data["methods"]:
        known = METHODS.get(entry["name"])
        if known is not None and entry["version"] > known.version:
            raise ValueError(f"{entry['name']} of version {entry['version']} is newer than this leanformer: update it")
        methods.append(_method(entry["name"], entry["options"]))
    return Card(
        backbone=data["backbone"],
        arguments=dict(data["arguments"]),
        methods=tuple(methods),
        fused=bool(data["fused"]),
        official=data.get("official"),
        global_pool=data.get("global_pool"),
        classes=check_classes(data.get("classes"), data["arguments"].get("num_classes")),
        input=check_view(data["input"]) if data.get("input") is not None else None,
        optimised=data.get("optimised"),
    )


def versions() -> dict[str, str]:
    """Versions of this package and of what it computes with.

    >>> sorted(versions())
    ['leanformer', 'timm', 'torch']
    """
    return {"leanformer": __version__, "timm": timm.__version__, "torch": torch.__version__}
