"""A checkpoint is one safetensors file whose metadata says how to rebuild the model: the card.

Nothing in the file is executed on loading: tensors are raw bytes and the card is JSON that is checked field by field.
"""

import contextlib
import dataclasses
import json
import os
import secrets
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import timm.data
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from timm.layers import to_2tuple
from torch import Tensor, nn

from .files import check_file
from .method import METHODS, Method, method_from, plain

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


def input_of(model: nn.Module) -> dict[str, Any]:
    """Input size (C, H, W), normalisation and evaluation crop of a model, as it was built.

    >>> import leanformer as lf
    >>> input_of(lf.create("deit_tiny_patch16_224", img_size=160))["input_size"]
    (3, 160, 160)
    """
    config = timm.data.resolve_data_config(model=model)
    size = _image_size(model)
    chans = getattr(model, "in_chans", config["input_size"][0])
    grid = (size, size) if isinstance(size, int) else tuple(size or config["input_size"][1:])
    return {**config, "input_size": (chans, *grid)}


def save(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write weights and card to one safetensors file, which `load` turns into the same model again.

    >>> import leanformer as lf
    >>> lf.save(lf.create("deit_tiny_patch16_224", depth=1), "lean.safetensors")  # doctest: +SKIP
    """
    try:
        card = json.dumps(card_json(model))
    except TypeError as error:
        raise ValueError(
            f"{card_of(model)} cannot be written as JSON, so the model cannot be saved: {error}"
        ) from error
    tensors = {key: value.detach().contiguous().cpu() for key, value in model.state_dict().items()}
    if len({value.untyped_storage().data_ptr() for value in tensors.values()}) < len(tensors):
        # a parameter that stands at two places is written twice, and loaded into both
        tensors = {key: value.clone() for key, value in tensors.items()}
    return write_atomically(path, lambda temporary: save_file(tensors, temporary, {KEY: card, "format": "pt"}))


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
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise ValueError(f"cannot write {path}: {error}") from error
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
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
    if KEY not in metadata:
        raise ValueError(
            f"{path} has weights but no leanformer card; give them to lf.create(name, checkpoint='{path}') instead"
        )
    try:
        return _from_json(json.loads(metadata[KEY])), tensors
    except (json.JSONDecodeError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the card in {path} is damaged: {type(error).__name__} {error}") from error


def has_card(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a checkpoint that `save` wrote; weights without a card are for `create`.

    >>> has_card("weights.pth")
    False
    """
    try:
        with safe_open(path, framework="pt") as file:
            return KEY in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def card_json(model: nn.Module) -> dict[str, Any]:
    """The card as plain JSON values, with the model's input and classes: what files say of themselves.

    >>> import leanformer as lf
    >>> card_json(lf.create("deit_tiny_patch16_224"))["num_classes"]
    1000
    """
    card, data = card_of(model), input_of(model)
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
        "num_classes": getattr(model, "num_classes", None),
        "global_pool": pooling_of(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "input": {key: plain(value) for key, value in data.items()},
        "versions": versions(),
    }


def _changed(model: nn.Module, card: Card) -> dict[str, Any]:
    """The arguments that make the model as it is now: it may have got another head or input size since it was made."""
    changed: dict[str, Any] = {"num_classes": model.num_classes} if hasattr(model, "num_classes") else {}
    made = card.arguments.get("img_size") or getattr(model, "pretrained_cfg", {}).get("input_size", (0, 0, 0))[1:]
    now = _image_size(model)
    if now is not None and to_2tuple(now) != to_2tuple(made):
        if not hasattr(model, "pos_embed"):  # other windows, which the size alone does not tell
            raise ValueError(
                f"this {type(model).__name__} was resized from {made} to {now} after it was made, so it cannot be "
                "rebuilt; make it with lf.create(name, img_size=..., window_size=...)"
            )
        changed["img_size"] = list(to_2tuple(now))
    return changed


def _image_size(model: nn.Module) -> int | tuple[int, int] | None:
    """What the patch embedding was built for, wherever the family keeps it."""
    places = (getattr(model, "patch_embed", None), getattr(model, "stem", None), model)
    return next((place.img_size for place in places if getattr(place, "img_size", None)), None)  # type: ignore[union-attr]


def pooling_of(model: nn.Module) -> str | None:
    """The name of the pooling before the classifier, where timm's `reset_classifier` can change it.

    >>> import leanformer as lf
    >>> pooling_of(lf.create("deit_tiny_patch16_224"))
    'token'
    """
    inner = getattr(getattr(model, "head", None), "global_pool", None)
    return getattr(inner, "pool_type", None) or getattr(model, "global_pool", None)


def _from_json(data: dict[str, Any]) -> Card:
    kinds = {"format": int, "backbone": str, "arguments": dict, "methods": list, "fused": bool}
    for field, kind in kinds.items():
        if not isinstance(data[field], kind):
            raise TypeError(f"'{field}' is {data[field]!r}, not of type {kind.__name__}")
    if data["format"] > FORMAT:
        raise ValueError(f"the card is of format {data['format']}, this leanformer reads up to {FORMAT}: update it")
    methods = []
    for entry in data["methods"]:
        known = METHODS.get(entry["name"])
        if known is not None and entry["version"] > known.version:
            raise ValueError(f"{entry['name']} of version {entry['version']} is newer than this leanformer: update it")
        methods.append(method_from(entry["name"], entry["options"]))
    return Card(
        backbone=data["backbone"],
        arguments=dict(data["arguments"]),
        methods=tuple(methods),
        fused=bool(data["fused"]),
        official=data.get("official"),
        global_pool=data.get("global_pool"),
    )


def versions() -> dict[str, str]:
    """Versions of this package and of what it computes with.

    >>> sorted(versions())
    ['leanformer', 'timm', 'torch']
    """
    try:
        own = version("leanformer")
    except PackageNotFoundError:
        own = "unknown"
    return {"leanformer": own, "timm": version("timm"), "torch": torch.__version__}
