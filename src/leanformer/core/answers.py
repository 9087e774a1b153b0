"""Models whose answers are no plain tensor: what a proof compares, and what is counted."""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .inputs import input_of


@runtime_checkable
class HasEvidence(Protocol):
    """A model that shows, on images of its own choice, everything that its answers are read from."""

    def evidence(self) -> dict[str, Tensor]:
        """Named tensors, before any threshold cuts them and as they are answered; always the same images."""
        ...


@runtime_checkable
class HasFixedPass(Protocol):
    """A model whose answers depend in shape on what an image shows, and that has a pass which does not."""

    def fixed_pass(self, images: Tensor) -> Any:
        """All layers over images (B, C, H, W) as the network sees them, without choosing among what they find."""
        ...


@runtime_checkable
class OptimisesInside(Protocol):
    """A model of which only a part can be optimised as a whole model is."""

    def optimised_inside(self, optimize: Any, **how: Any) -> nn.Module:
        """The model with that part optimised by `optimize`, which takes what is in `how`."""
        ...

    def compiled_inside(self, compile: Any) -> nn.Module:
        """The model around the same weights with that part compiled by `compile`, such as `torch.compile`."""
        ...


def evidence_of(model: nn.Module) -> dict[str, Tensor]:
    """What a model answers to two random images of its own size and dtype, by name.

    Args:
        model: a model whose answer is a tensor or a list of tensors, or that has evidence of its own.
    """
    if isinstance(model, HasEvidence):
        return model.evidence()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, *input_of(model)["input_size"], generator=generator, dtype=torch.float64)
    answer = model(images.to(next(model.parameters())))
    return {str(index): each for index, each in enumerate(answer if isinstance(answer, list | tuple) else [answer])}
