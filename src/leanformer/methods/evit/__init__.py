"""EViT: keep the patches that the class token attends to, fuse the rest into one token."""

from .method import EViT, keep_rate_at, kept_count

__all__ = ["EViT", "keep_rate_at", "kept_count"]
