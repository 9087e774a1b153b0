"""Pictures that explain: one function, one figure, each with a summary in words. Models come in as values."""

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes as _lazy_attributes

if TYPE_CHECKING:
    from ._public import *  # noqa: F403
else:
    __getattr__, __dir__ = _lazy_attributes(__name__, predictions="dense:predictions")
