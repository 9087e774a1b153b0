"""Fixtures that all tests share: seeds, and the folder with official answers and real data."""

from pathlib import Path

import pytest
import torch
from helpers import SHARED

torch.set_num_threads(1)  # the models are tiny, and each core has a test process of its own


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder beside the checkout with official answers (`parity`) and real data (`data`)."""
    if not SHARED.is_dir():
        pytest.skip("the folder shared/ with official answers and real data is not beside this checkout")
    return SHARED


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Formats that compile for minutes meet every method and, by default, no further backbone."""
    for item in items:
        if item.name.startswith("test_backbone_goes_through") and item.name.endswith(("-aoti]", "-openvino]")):
            item.add_marker(pytest.mark.exhaustive)
