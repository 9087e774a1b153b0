"""Folders of Hugging Face's layout: ours written and read, timm's and transformers' read."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from ..backbones import adopt, create
from ..backbones.fetching import FOLDER, HUB, fetching
from ..core import card_json, has_card, save, set_input, write_atomically
from ..speed import load as load_checkpoint
from .readme import Results, model_card, read_json

CONFIG, WEIGHTS, README, PROCESSOR = "config.json", "model.safetensors", "README.md", "preprocessor_config.json"
FILTERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of filters, as processors of transformers write them."""
KIND = "leanformer"


def save_folder(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    results: Results = (),
    license: str | None = None,
) -> Path:
    """Write a model as a folder that `load_folder` reads and `push` puts on the hub.

    Args:
        model: A leanformer model.
        folder: Where; it is made if it is not there, and files of these names are replaced.
        name: What the model card calls the model; by default as the folder.
        results: Result files for the model card.
        license: For the model card, such as apache-2.0.

    Returns:
        The folder.

    >>> save_folder(model, "lean-vit", results=["runs/lean/plan.json"])  # doctest: +SKIP
    PosixPath('lean-vit')
    """
    folder = Path(folder)
    readme = model_card(model, name or folder.resolve().name, results, license)
    config = json.dumps({"model_type": KIND, KIND: card_json(model)}, indent=2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {folder}: {error.strerror or error}") from error
    save(model, folder / WEIGHTS)
    for file, text in ((CONFIG, config), (README, readme)):
        write_atomically(folder / file, lambda path, text=text: Path(path).write_text(text, encoding="utf-8"))
    return folder


def holds_model(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds what `load_folder` looks for.

    Args:
        folder: Any path.
    """
    return any((Path(folder) / name).is_file() for name in (WEIGHTS, CONFIG))


def load_folder(folder: str | os.PathLike[str], fast: bool = True) -> nn.Module:
    """The model in a folder that `save_folder`, timm or transformers wrote, adopted, in evaluation mode.

    Args:
        folder: The folder.
        fast: False for the plain form of an optimised model.

    >>> load_folder("lean-vit")  # doctest: +SKIP
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder with a model")
    if has_card(folder / WEIGHTS):
        return load_checkpoint(folder / WEIGHTS, fast=fast)
    config = read_json(folder / CONFIG, "holds no settings of a model")
    if "architecture" in config:
        return create(f"{FOLDER}{folder}", pretrained=True).eval()
    if config.get("architectures"):
        return _of_transformers(folder, str(config["architectures"][0])).eval()
    raise ValueError(f"{folder / CONFIG} is of no model that is known: leanformer's, timm's or transformers'")


def load(place: str | os.PathLike[str], *, revision: str | None = None, fast: bool = True) -> nn.Module:
    """The model in a folder, or in a repository of Hugging Face's hub.

    Args:
        place: A folder, or a repository such as `someone/lean-vit`, with or without `hf-hub:` before it.
        revision: A branch, tag or commit of the repository.
        fast: False for the plain form of an optimised model.

    >>> load("someone/lean-vit")  # doctest: +SKIP
    """
    if Path(place).is_dir():
        return load_folder(place, fast)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    repository = str(place).removeprefix(HUB)
    try:
        with fetching(f"{HUB}{repository}"):
            found = snapshot_download(repository, revision=revision, allow_patterns=[CONFIG, WEIGHTS, PROCESSOR])
    except HFValidationError as error:
        raise ValueError(f"{place} is neither a folder nor the name of a repository") from error
    return load_folder(found, fast)


def _of_transformers(folder: Path, name: str) -> nn.Module:
    if importlib.util.find_spec("transformers") is None:
        raise ValueError(f"{folder} holds a {name} of transformers; install with: pip install 'leanformer[hub]'")
    import transformers

    kind: Any = getattr(transformers, name, None)
    if kind is None:
        raise ValueError(f"{folder} holds a {name}, which transformers {transformers.__version__} does not know")
    model = adopt(kind.from_pretrained(folder, local_files_only=True))
    processor = folder / PROCESSOR
    return (
        set_input(model, _view(read_json(processor, "holds no settings of a model"))) if processor.is_file() else model
    )


def _view(processor: dict[str, Any]) -> dict[str, Any]:
    """Normalisation and crop, as an image processor of transformers was told them."""
    view: dict[str, Any] = {}
    for theirs, ours in (("image_mean", "mean"), ("image_std", "std")):
        if isinstance(processor.get(theirs), list):
            view[ours] = tuple(processor[theirs])
    if processor.get("resample") in FILTERS:
        view["interpolation"] = FILTERS[processor["resample"]]
    size, crop = processor.get("size"), processor.get("crop_size")
    if processor.get("do_center_crop") and isinstance(size, dict) and isinstance(crop, dict):
        shortest = size.get("shortest_edge") or size.get("height")
        view |= {"crop_pct": crop["height"] / shortest} if shortest and crop.get("height") else {}
    return view
