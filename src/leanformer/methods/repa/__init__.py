"""RePa: most hidden channels of an FFN stay idle in training, so that the FFN folds into three small linears."""

from .method import RePa

__all__ = ["RePa"]
