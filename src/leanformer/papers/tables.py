"""The papers' tables beside ours: system → the module that holds its ROWS, and says in its docstring how they count."""

from types import ModuleType

from .evit import tables as evit
from .metaformer import tables as metaformer
from .repa import tables as repa
from .riformer import tables as riformer
from .sit import tables as sit

TABLES: dict[str, ModuleType] = {
    "evit": evit, "metaformer": metaformer, "repa": repa, "riformer": riformer, "sit": sit,
}  # fmt: skip
