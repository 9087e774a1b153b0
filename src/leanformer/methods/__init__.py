"""The methods. A new one is a file here and its line below; everything else finds it by its name."""

from .evit import EViT

__all__ = ["EViT"]
