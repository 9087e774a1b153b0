"""In which form a model answers in training: objectives ask students for more than logits, which must not outlive them.

A student that went on mixing patches (`mix_token`) would learn the labels of one image from parts of another as soon as
it is trained by an objective that does not mix labels.
"""

import contextlib
from collections.abc import Iterator

from torch import nn

FORM = ("return_dense", "mix_token", "distilled_training")
"""Attributes of models that objectives set while a student learns."""


@contextlib.contextmanager
def answers_as_before(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Within the context objectives may change the form of a model's answers in training; behind it, it is as before.

    Args:
        model: A student.

    Yields:
        A list for copies of the model that were made meanwhile: they get the form of the model as it was.

    >>> student = nn.Identity()
    >>> student.mix_token = False
    >>> with answers_as_before(student):
    ...     student.mix_token = True
    >>> student.mix_token
    False
    """
    before = {name: getattr(model, name) for name in FORM if hasattr(model, name)}
    copies: list[nn.Module] = []
    try:
        yield copies
    finally:
        for each in (model, *copies):
            for name, value in before.items():
                setattr(each, name, value)
