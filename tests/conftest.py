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
    "core/", "hostile/test_command_lines.py", "cli/test_cli_models.py", "cli/test_refusals.py",
    "measure/test_counting.py", "train/test_objectives.py",
)  # fmt: skip
"""Tests that see most of the house in little time: the files and folders of `make quick`."""


EXHAUSTIVE = re.compile(
    r"""
    _goes_through\[.*-aoti\] | test_method_goes_through\[.*-openvino\]       # they compile for long
  | test_backbone_goes_through\[(?!vit-onnx|poolformer-onnx|gfnet-torch)    # methods go through on several backbones
  | test_method_goes_through\[[^+]*-torch\]
  | test_contract\.py::.*-(vit_map_pool|vit_qk_norm_avg|deit3|timm_caformer|timm_poolformer|lvvit_plus|resmlp|gmlp)\]
  | test_contract\.py::.*compiles.*-(?!vit\]|swin\]|poolformer\])
  | test_tables_evit\.py::test_every_row_agrees\[(?!2a|3b)
  | test_adopt\.py::test_training_with_every_kind_of_drop.*\[(?!vit\]|swin\])
  | test_census\.py::.*\[(vision_transformer|metaformer|vision_transformer_hybrid)\]    # hundreds of models
  | test_repa\.py::test_fusing_is_exact_on_every_backbone.*\[(?!vit\]|swin\])           # so says the contract
  | test_repa_fit\.py::test_a_calibrated_model_is_nearer.*\[(?!vit\]|swin\]|poolformer\]|lvvit\])
  | test_sit_real\.py::test_tokens_and_logits_teach_more
  | test_together\.py::test_(a_sharded_run|batch_norms_left_alone|a_synchronised_norm|synchronised.*False)
  | test_together\.py::test_two_processes_give.*\[(\{'(shard|accumulate)'[^,]*\}|\{\})\]   # both at once stay
  | test_start\.py::test_(two_processes_calibrate|a_calibrated_run_that_was_killed.*\[0\])
  | test_compile_together\.py::test_(more_jobs|a_process_that_dies|a_job_that_ends|what_is_compiled)    # many processes
  | test_dense_suite\.py::test_processes_that_compile | test_study\.py::test_a_study_that_is_terminated
  | test_profile\.py::test_components_can_be_compiled | test_dino\.py::test_compiled_code_learns
  | test_study\.py::test_(a_study_writes_a_row|processes_share|speeds_measured|a_student_of|every_student|what_is_to_be)
  | lab/test_(growth|contest|metaformers|kernel_suite)\.py::
  | test_suite\.py::test_(a_family_is_measured|a_group_that_fails|the_cpu_has_a_row|rows_without)
  | test_survival\.py::.*(any_update.*\[(0|11)\]|on_image_files)
  | test_bench\.py::test_(bench_says_whether|a_model_of_four_times|models_are_timed_in_several|optimised_models_stand)
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
