"""EViT (Liang et al., ICLR 2022): official keys, published recipes, and the rows of its tables."""

from . import keys, recipes  # noqa: F401  (they make themselves known)
from .tables import TABLES

__all__ = ["TABLES"]
