"""Fixtures that all tests share: seeds, and the folder with official answers and real data."""

import os
import re
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


EXHAUSTIVE = re.compile(
    r"""
    _goes_through\[[^+]*-(aoti|openvino)\]                                  # one lean model meets them
  | test_backbone_goes_through\[(?!vit-|swin-|lvvit-|poolformer-)           # methods go through on several backbones
  | test_census\.py::.*\[(vision_transformer|metaformer)\]                  # hundreds of models
  | test_sit_real\.py::test_tokens_and_logits_teach_more
  | test_together\.py::test_(a_sharded_run|batch_norms_left_alone|a_synchronised_norm.*True|synchronised.*False)
  | test_together\.py::test_two_processes_give.*\[\{'(shard|accumulate)'[^,]*\}\]   # both at once stay
  | test_study\.py::test_(processes_share|speeds_measured|a_student_of_smaller|every_student_of|what_is_to_be_timed)
  | test_suite\.py::test_(a_family_is_measured|a_group_that_fails|the_cpu_has_a_row)
  | test_survival\.py::.*any_update.*\[(0|11)\]
  | test_bench\.py::test_(bench_says_whether|a_model_of_four_times|models_are_timed_in_several)
  | test_quantise\.py::test_bench_puts_runtimes
  | test_optimize\.py::.*remembers\[model\]
  | test_recipes\.py::test_a_recipe_trains.*\[(?!evit_lvv|repa_deit|sit_|riformer_s12\]|slab|repa_dino|poolformer_s)
    """,
    re.VERBOSE,
)
"""What takes long and adds little to what the others show: only with `make test-all`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick ones and the exhaustive ones."""
    for item in items:
        if str(item.path.relative_to(Path(__file__).parent)).startswith(QUICK):
            item.add_marker(pytest.mark.quick)
        if EXHAUSTIVE.search(item.nodeid):
            item.add_marker(pytest.mark.exhaustive)
