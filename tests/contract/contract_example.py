"""The example method of the documentation, known in the contract tests alone.

`contract_broken` breaks it in every way that the suite must notice.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from add_a_method import Gain, GainBranch, gain_shape

from leanformer.core import METHODS, Method

__all__ = ["Gain", "GainBranch", "gain_shape", "known"]

METHODS.pop("gain")  # importing the example has registered it, for every test


@contextmanager
def known(*methods: type[Method]) -> Iterator[None]:
    """Within the context the methods stand in METHODS, as if the package had them."""
    METHODS.update({method.name: method for method in methods})
    try:
        yield
    finally:
        for method in methods:
            METHODS.pop(method.name, None)
