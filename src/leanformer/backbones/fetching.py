"""Weights from elsewhere: `pretrained=True` and names such as `hf-hub:timm/vit_tiny_patch16_224.augreg_in21k`.

They are fetched where there is a network and taken from the cache where there is none; what is in neither is refused
in one line, and at once, where the hub's own client tries again for a minute.
"""

import contextlib
import json
import logging
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from timm.models import load_model_config_from_hf, parse_model_name

HUB, FOLDER = "hf-hub:", "local-dir:"
SECONDS = 5.0
"""How long the hub may take to answer a first knock."""


def stands_elsewhere(name: str) -> bool:
    """Whether a name is that of a model on Hugging Face's hub or in a folder of that layout, as timm writes them.

    >>> stands_elsewhere("hf-hub:timm/deit_tiny_patch16_224.fb_in1k"), stands_elsewhere("deit_tiny_patch16_224")
    (True, False)
    """
    return name.startswith((HUB, FOLDER))


def architecture(name: str, cache_dir: str | None = None) -> tuple[str, dict[str, Any]]:
    """timm's name of a model that stands elsewhere, and the arguments that are written there.

    Args:
        name: A name for which `stands_elsewhere` is true.
        cache_dir: Where the hub's files are kept; by default where its client keeps them.
    """
    _, place = parse_model_name(name)
    if name.startswith(HUB):
        with fetching(name, weights=False):
            _, found, arguments = load_model_config_from_hf(place, cache_dir=cache_dir)
        return found, dict(arguments or {})
    told = json.loads((Path(place) / "config.json").read_text(encoding="utf-8"))
    return told["architecture"], dict(told.get("model_args") or {})


def hub_answers() -> bool:
    """Whether anything listens where the hub should be, or a proxy stands before it that will know."""
    if constants.HF_HUB_OFFLINE:
        return False
    hub = urllib.parse.urlsplit(constants.ENDPOINT)
    if urllib.request.getproxies().get(hub.scheme):
        return True
    try:
        port = hub.port or (443 if hub.scheme == "https" else 80)
        socket.create_connection((hub.hostname or "", port), timeout=SECONDS).close()
    except OSError:
        return False
    return True


class NotFetched(ValueError):
    """What stands elsewhere could not be had."""


@contextlib.contextmanager
def fetching(name: str, weights: bool = True) -> Iterator[None]:
    """Fetch a model inside, or take it from the cache where the hub does not answer.

    Args:
        name: The model's name, for the message. Nothing is done for one of a local folder.
        weights: Whether its weights are fetched too, and not only what the hub says of it.

    Raises:
        NotFetched: In one line, if it can be had from neither.
    """
    if name.startswith(FOLDER) or not (weights or name.startswith(HUB)):
        yield
        return
    client, there, before = logging.getLogger("huggingface_hub"), hub_answers(), constants.HF_HUB_OFFLINE
    level = client.level
    client.setLevel(logging.ERROR)  # each retry is a line otherwise
    constants.HF_HUB_OFFLINE = not there
    try:
        yield
    except OSError as error:
        told = f"{urllib.parse.urlsplit(constants.ENDPOINT).hostname} does not answer, and its cache here is without it"
        if there:
            told = next(iter(str(error).strip().splitlines()), type(error).__name__)
        what = f"the weights of {name}" if weights else name
        raise NotFetched(f"{what} cannot be fetched: {told}; give a file with weights instead") from error
    finally:
        constants.HF_HUB_OFFLINE = before
        client.setLevel(level)
