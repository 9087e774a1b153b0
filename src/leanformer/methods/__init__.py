"""The methods. A new one is a file here and its line below; everything else finds it by its name."""

from .evit import EViT
from .repa import RePa
from .riformer import RIFormer

__all__ = ["EViT", "RePa", "RIFormer"]
