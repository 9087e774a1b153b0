"""Two processes compute what one does with the whole batch, copied or sharded, with and without accumulation."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from together import norm_step, one_step, together

from leanformer.layers.norms import BatchNormLast
from leanformer.train import parallel
from leanformer.train.runs import Settings
from leanformer.train.sync_norm import SyncBatchNorm

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


REPA = ("repa:idle_ratio=0.5",)


@pytest.fixture(scope="module")
def alone_with_batch_norms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    one_step(str(folder / "run"), methods=REPA, sync_bn=True)
    return folder / "run"


@pytest.mark.parametrize("shard", [False, True])
def test_synchronised_batch_norms_see_the_whole_batch(alone_with_batch_norms, tmp_path, shard):
    together(str(tmp_path / "run"), methods=REPA, sync_bn=True, shard=shard)
    statistics = _weights(tmp_path / "run")["blocks.1.ffn.norm2.running_var"]
    assert (statistics - 1).abs().max() > 0.05
    assert _difference(alone_with_batch_norms, tmp_path / "run") < 1e-6


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_synchronised_norm_is_the_plain_one_of_all_rows(tmp_path, channels_last):
    norm_step(str(tmp_path), channels_last=channels_last)
    together(str(tmp_path), step=norm_step, channels_last=channels_last)
    whole, first, second = (torch.load(tmp_path / f"{name}.pt") for name in (None, 0, 1))
    for key in ("y", "x"):
        joined = torch.stack([first[key], second[key]], 1).flatten(0, 1)
        torch.testing.assert_close(joined, whole[key], rtol=1e-5, atol=1e-5)
    for key in ("weight.grad", "bias.grad"):
        torch.testing.assert_close(first[key] + second[key], whole[key], rtol=1e-5, atol=1e-4)
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(first[key], whole[key])


@pytest.mark.parametrize(
    "norm", [BatchNormLast(4), torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4, affine=False)], ids=str
)
def test_a_synchronised_norm_alone_gives_the_bits_of_the_plain_one(norm):
    other, x = SyncBatchNorm(copy.deepcopy(norm)), torch.randn(3, 4, 4, 4)
    for _ in range(2):
        assert torch.equal(other(x), norm(x))
    assert all(torch.equal(value, norm.state_dict()[key]) for key, value in other.state_dict().items())
    assert torch.equal(other.eval()(x), norm.eval()(x))


def test_batch_norms_left_alone_see_the_batch_of_their_process(alone_with_batch_norms, tmp_path):
    together(str(tmp_path / "run"), methods=REPA)
    assert _difference(alone_with_batch_norms, tmp_path / "run") > 1e-4


def test_sharding_one_process_is_refused(tmp_path):
    with pytest.raises(ValueError, match="torchrun"):
        one_step(str(tmp_path / "run"), shard=True)


@pytest.mark.parametrize(("world", "gpu", "cpu"), [("2", False, True), ("2", True, False), ("1", False, False)])
def test_processes_that_a_launcher_started_without_a_gpu_train_together(world, gpu, cpu, monkeypatch):
    given: dict[str, Any] = {}
    alone = SimpleNamespace(device=torch.device("cpu"), num_processes=1)
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu)
    monkeypatch.setattr(parallel, "Accelerator", lambda **options: given.update(options) or alone)
    parallel.accelerator_for(Settings(), None)
    assert given["cpu"] is cpu
