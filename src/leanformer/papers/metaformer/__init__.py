"""PoolFormer (CVPR 2022) and the MetaFormer baselines (TPAMI 2024): their official keys, tables and recipes."""

from . import keys, recipes  # noqa: F401  (they make themselves known)
from .tables import TABLES

__all__ = ["TABLES"]
