"""The example method is known in the contract tests, and only there."""

from collections.abc import Iterator

import pytest
from contract_example import Gain, known


@pytest.fixture(autouse=True)
def _example() -> Iterator[None]:
    with known(Gain):
        yield
