"""The census of timm's models: which of a family are adopted, and why the others are refused."""

import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import timm
import torch
from torch import nn

from ..core import Block, blocks_of
from .timm import adopt

FAMILIES = ("vision_transformer", "vision_transformer_hybrid", "deit", "swin_transformer", "mlp_mixer", "metaformer")
"""The modules of timm whose models have blocks with slots."""


@dataclass(frozen=True)
class Entry:
    """One timm model: what it is made of, and the reason why it is refused ('' when it is adopted)."""

    name: str
    family: str
    model: str
    """The model's class."""
    blocks: str
    """Number and token mixer of the blocks, e.g. '12 Attention'."""
    parameters: int
    refused: str = ""


def names_of(family: str) -> list[str]:
    """timm's own model names of one of its modules, sorted.

    >>> names_of("deit")[0]
    'deit3_base_patch16_224'
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown family '{family}'; known: {', '.join(FAMILIES)}")
    names = timm.list_models(module=family)
    return [name for name in names if inspect.unwrap(timm.model_entrypoint(name)).__module__.startswith("timm.")]


def census(family: str) -> Iterator[Entry]:
    """Adopt every model of a family of timm's, built on the meta device.

    >>> [entry.blocks for entry in census("mlp_mixer") if entry.name == "gmlp_b16_224"]
    ['30 GatedMlp']
    """
    for name in names_of(family):
        with torch.device("meta"):
            model = timm.create_model(name)
        parameters = sum(p.numel() for p in model.parameters())
        try:
            blocks, refused = _mixers(adopt(model, name)), ""
        except ValueError as error:
            blocks, refused = "", str(error).partition(": ")[2].partition(";")[0]
        yield Entry(name, family, type(model).__name__, blocks, parameters, refused)


def _mixers(model: nn.Module) -> str:
    counts = Counter(_mixer(block) for block in blocks_of(model).values())
    return " + ".join(f"{count} {mixer}" for mixer, count in counts.items())


def _mixer(block: Block) -> str:
    return type(getattr(block.mix, "fn", block.mix)).__name__
