"""The papers' tables beside ours, by system."""

from . import evit, metaformer, repa, riformer, sit
from .table import PaperTables

TABLES: dict[str, PaperTables] = {
    "evit": evit.TABLES,
    "metaformer": metaformer.TABLES,
    "repa": repa.TABLES,
    "riformer": riformer.TABLES,
    "sit": sit.TABLES,
}
