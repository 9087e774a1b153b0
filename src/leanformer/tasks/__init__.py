"""What differs between one kind of training and another: what a batch is, its loss, how a model is judged."""

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes as _lazy_attributes

if TYPE_CHECKING:
    from ._public import *  # noqa: F403
else:
    __getattr__, __dir__ = _lazy_attributes(__name__)
