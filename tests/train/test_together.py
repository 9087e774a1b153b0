"""Two processes compute what one does with the whole batch, copied or sharded, with and without accumulation."""

from pathlib import Path

import pytest
import torch
from together import one_step, together

ADAMW = {"epochs": 2, "max_updates": None, "recipe": {"optimizer": "adamw", "learning_rate": 1e-2, "ema": 0.9}}


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "weights.pt", weights_only=True)


def _difference(one: Path, other: Path) -> float:
    a, b = _weights(one), _weights(other)
    assert a.keys() == b.keys()
    return max((a[key] - b[key]).abs().max().item() for key in a)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    one_step(str(folder / "run"))
    return folder / "run"


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"shard": True}, {"shard": True, "accumulate": 2}], ids=str)
def test_two_processes_give_the_gradient_of_one_with_twice_the_batch(alone, tmp_path, options):
    together(str(tmp_path / "run"), **options)
    assert _difference(alone, tmp_path / "run") < 1e-6


def test_accumulation_gives_the_gradient_of_the_whole_batch(alone, tmp_path):
    one_step(str(tmp_path / "run"), accumulate=4)
    assert _difference(alone, tmp_path / "run") < 1e-6


def test_another_batch_gives_another_gradient(alone, tmp_path):
    one_step(str(tmp_path / "run"), seed=1)
    assert _difference(alone, tmp_path / "run") > 1e-4


def test_a_sharded_run_with_moving_average_resumes_where_it_was(tmp_path):
    together(str(tmp_path / "whole"), shard=True, **ADAMW)
    together(str(tmp_path / "parts"), shard=True, **{**ADAMW, "max_updates": 3, "save_every": 1})
    together(str(tmp_path / "parts"), shard=True, resume=True, **ADAMW)
    assert _difference(tmp_path / "whole", tmp_path / "parts") == 0
    one_step(str(tmp_path / "one"), **ADAMW)
    assert _difference(tmp_path / "whole", tmp_path / "one") < 1e-4


def test_sharding_one_process_is_refused(tmp_path):
    with pytest.raises(ValueError, match="torchrun"):
        one_step(str(tmp_path / "run"), shard=True)
