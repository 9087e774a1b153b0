"""SiT: slim tokens softly, taught token by token by the model that keeps them all."""

from .method import SiT

__all__ = ["SiT"]
