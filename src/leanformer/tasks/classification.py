"""Classification: one class for a whole image. It is the task that the training loop has by itself."""

from ..train.task import Task as Classification

__all__ = ["Classification"]
