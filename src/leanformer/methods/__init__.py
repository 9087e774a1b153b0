"""The methods. A new one is a file here and its line below; everything else finds it by its name."""

from .evit import EViT
from .metaformer import TokenMixer
from .repa import RePa
from .riformer import RIFormer
from .sit import SiT

__all__ = ["EViT", "RIFormer", "RePa", "SiT", "TokenMixer"]
