"""RePaFormer (Xu et al., 2025), published as RePaViT: its models, official keys, tables and recipes."""

from . import dino, keys, models, recipes  # noqa: F401  (they make themselves known)
from .tables import TABLES

__all__ = ["TABLES"]
