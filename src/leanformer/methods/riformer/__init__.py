"""RIFormer: an affine instead of the token mixer, taught by imitation; folded, nothing is left of it."""

from .method import RIFormer

__all__ = ["RIFormer"]
