"""What differs between one kind of training and another: what a batch is, its loss, how a model is judged."""

from . import dino

__all__ = ["dino"]
