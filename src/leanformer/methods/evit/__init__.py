"""EViT: keep the patches that the class token attends to, fuse the rest into one token."""

from .method import EViT, Reorganise, keep_rate_at, kept_count
from .reorganise import Choose

__all__ = ["Choose", "EViT", "Reorganise", "keep_rate_at", "kept_count"]
