"""push: a folder, or a model by way of one, to a repository of Hugging Face's hub."""

import os
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from ..backbones.fetching import HUB, NotFetched, hub_answers
from .folder import CONFIG, README, WEIGHTS, save_folder
from .readme import Results


def push(
    model: nn.Module | str | os.PathLike[str],
    repository: str,
    *,
    results: Results = (),
    license: str | None = None,
    private: bool = True,
    message: str = "A model made with leanformer",
) -> str:
    """Put a model and its card on the hub, as whoever is logged in there (`hf auth login`), and return its address.

    Args:
        model: A leanformer model, or a folder that `save_folder` wrote.
        repository: Where, as `someone/lean-vit`; it is made if it is not there.
        results: Result files for the model card.
        license: For the model card, such as apache-2.0.
        private: Whether a repository that is made can be seen by its owner alone.
        message: The commit's.

    >>> push(model, "someone/lean-vit")  # doctest: +SKIP
    'https://huggingface.co/someone/lean-vit'
    """
    from huggingface_hub import HfApi

    repository = repository.removeprefix(HUB)
    if not hub_answers():
        raise NotFetched(f"{repository} cannot be pushed: the hub does not answer; lf.hub.save_folder writes a folder")
    with tempfile.TemporaryDirectory() as temporary:
        if isinstance(model, nn.Module):
            folder = save_folder(model, temporary, name=repository, results=results, license=license)
        else:
            folder = _checked(Path(model), results, license)
        api: Any = HfApi(library_name="leanformer")
        try:
            address = api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repository, folder_path=folder, commit_message=message, allow_patterns=[CONFIG, WEIGHTS, README]
            )
        except (OSError, ValueError) as error:
            told = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ValueError(f"{repository} cannot be pushed: {told}") from error
    return str(address)


def _checked(folder: Path, results: Results, license: str | None) -> Path:
    if results or license:
        raise ValueError(f"the model card in {folder} is written: give results and licence to save_folder")
    missing = [name for name in (CONFIG, WEIGHTS, README) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} has no {missing[0]}; lf.hub.save_folder writes such folders")
    return folder
