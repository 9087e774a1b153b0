"""ToMe: merge the patches that say nearly the same, and let a merged token count for all it stands for."""

from .merging import Match, merge
from .method import ToMe

__all__ = ["Match", "ToMe", "merge"]
