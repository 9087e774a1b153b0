"""A served model: images come in over HTTP, classes and kept patches go out.

    body → limits → decode → resize, crop, normalise → queue → batch → model → classes

The web framework is imported by `app` alone, so that everything else works without it.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes as _lazy_attributes

if TYPE_CHECKING:
    from ._public import *  # noqa: F403
else:
    __getattr__, __dir__ = _lazy_attributes(__name__)
