"""The papers' tables beside ours, by system."""

from . import evit, metaformer, repa, riformer, sit
from .table import PaperTables

PAPERS = (evit, metaformer, repa, riformer, sit)
TABLES: dict[str, PaperTables] = {paper.__name__.rpartition(".")[2]: paper.TABLES for paper in PAPERS}
