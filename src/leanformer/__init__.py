"""leanformer makes MetaFormer-structured vision models faster and keeps most of their accuracy.

Methods, distillation, exact fusing, measured speed.
"""

from typing import TYPE_CHECKING

from ._version import __version__ as __version__
from .lazy import AROUND as _around
from .lazy import METHODS as _methods
from .lazy import MODELS as _models
from .lazy import READERS as _readers
from .lazy import lazy_attributes as _lazy_attributes

_methods.sources.append("leanformer.methods")
_models.sources += ["leanformer.backbones", "leanformer.papers.official"]
_readers.sources.append("leanformer.papers.official")
_around.sources += ["leanformer.tasks.pyramid", "leanformer.tasks.detectors", "leanformer.tasks.segmenters"]

if TYPE_CHECKING:
    from ._public import *  # noqa: F403
else:
    __getattr__, __dir__ = _lazy_attributes(
        __name__,
        recipes="papers.recipes",
        lean="search.make_lean:lean",
        predict="prediction:predict",
        features="tasks.pyramid:features",
        from_official="papers.official:from_official",
        to_official="papers.official:to_official",
    )
