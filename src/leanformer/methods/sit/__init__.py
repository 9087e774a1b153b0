"""SiT: slim tokens softly, taught token by token by the model that keeps them all."""

from .method import SiT, slimmed_counts

__all__ = ["SiT", "slimmed_counts"]
