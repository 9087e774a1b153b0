"""A model may run another way than it is described: what reports, files and other formats show is its plain form."""

from typing import Protocol, runtime_checkable

from torch import nn


@runtime_checkable
class HasPlainForm(Protocol):
    """A model made for one device and batch, which keeps the model that it was made from."""

    def plain_form(self) -> nn.Module:
        """The fused model that this one computes, in plain torch, on the CPU."""
        ...


def plain_of(model: nn.Module) -> nn.Module:
    """The plain form of an optimised model; any other model is its own.

    Args:
        model: any model, optimised or not.

    >>> layer = nn.Linear(2, 2)
    >>> plain_of(layer) is layer
    True
    """
    return model.plain_form() if isinstance(model, HasPlainForm) else model
