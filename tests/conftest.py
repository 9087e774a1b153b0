"""Fixtures that all tests share: seeds, and the folder with official answers and real data."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="session")
def screenshot() -> Callable[[Any, str], None]:
    """Keeps what a browser shows as a PNG of that name, in runs/screenshots or where LEANFORMER_SCREENSHOTS says."""
    folder = Path(os.environ.get("LEANFORMER_SCREENSHOTS") or Path(__file__).parents[1] / "runs" / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return lambda browser, name: browser.screenshot(folder / f"{name}.png")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


QUICK = (
    "core/", "hostile/", "cli/test_cli_models.py", "cli/test_refusals.py", "cli/test_startup.py",
    "measure/test_counting.py", "train/test_objectives.py",
)  # fmt: skip
"""Tests that see most of the house in little time: the files and folders of `make quick`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick ones, and formats that compile for long: by default those meet one lean model and no backbone."""
    for item in items:
        if str(item.path.relative_to(Path(__file__).parent)).startswith(QUICK):
            item.add_marker(pytest.mark.quick)
        if "_goes_through[" in item.name and item.name.endswith(("-aoti]", "-openvino]")) and "+" not in item.name:
            item.add_marker(pytest.mark.exhaustive)
