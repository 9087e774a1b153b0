"""The methods. A new one is a file here and its line below; everything else finds it by its name."""

from .evit.method import EViT
from .repa.method import RePa
from .riformer.method import RIFormer
from .sit.method import SiT
from .slab import SLAB
from .token_mixer import TokenMixer
from .tome import ToMe

__all__ = ["SLAB", "EViT", "RIFormer", "RePa", "SiT", "ToMe", "TokenMixer"]
