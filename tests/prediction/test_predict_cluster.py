"""What a cluster is asked for: by what the user wants, whatever the machine has that asks. No cluster is started."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import tiny
from pictures import write_pictures

import leanformer as lf
from leanformer.cli import main
from leanformer.prediction import ray_engine

PIXELS = torch.zeros(20, 3, 20, 20, dtype=torch.uint8)


class Pipeline:
    """Notes what each stage of a pipeline is given."""

    def __init__(self) -> None:
        self.stages: list[dict[str, Any]] = []

    def map_batches(self, work: Any, **options: Any) -> "Pipeline":
        self.stages.append(options)
        return self


def ray_with(**resources: int) -> Any:
    """As much of Ray as a pipeline is built with, on a cluster with these resources."""
    context = SimpleNamespace(execution_options=SimpleNamespace())
    data = SimpleNamespace(
        DataContext=SimpleNamespace(get_current=lambda: context),
        ActorPoolStrategy=lambda **sizes: sizes,
        from_numpy=lambda numbers: Pipeline(),
    )
    return SimpleNamespace(data=data, cluster_resources=lambda: resources)


@pytest.fixture
def without_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(ray_engine, "require_ray", lambda: None)


def test_the_gpus_of_a_cluster_are_used_from_a_machine_without_one(without_gpu):
    answers = lf.predict(tiny(), PIXELS, device="cuda", engine="ray", optimized=True)
    assert (answers.settings.dtype, answers.settings.batch_size) == ("bfloat16", 20)
    read, answer = ray_engine._pipeline(ray_with(GPU=2, CPU=8), answers, None, None, 5).stages
    assert (answer["num_gpus"], answer["compute"]["max_size"], read["num_cpus"]) == (1, 2, 1)
    settings = answer["fn_constructor_args"][1]
    assert (settings.device, settings.optimized) == ("cuda", True)


def test_a_machine_without_a_gpu_tells_the_columns_of_a_run_on_gpus(without_gpu):
    answers = lf.predict(tiny(), PIXELS, device="cuda", engine="ray", optimized=True, embed=True)
    there = lf.predict(tiny(), PIXELS, device="cpu", embed=True)
    assert answers.fields == there.fields


def test_a_cluster_without_gpus_is_told_where_they_are_asked_for(without_gpu):
    asked = lf.predict(tiny(), PIXELS, device="cuda", engine="ray")
    with pytest.raises(ValueError, match="no machine of the Ray cluster has a GPU; give the device cpu"):
        ray_engine._pipeline(ray_with(CPU=8), asked, None, None, 5)
    usual = ray_engine._pipeline(ray_with(CPU=8), lf.predict(tiny(), PIXELS, engine="ray"), None, None, 5)
    assert usual.stages[1]["fn_constructor_args"][1].device == "cpu"


def test_a_cluster_is_not_given_to_an_engine_that_has_none(tmp_path, capsys):
    with pytest.raises(ValueError, match="a cluster is for the engine ray, not for local"):
        lf.predict(tiny(), PIXELS, cluster=lf.prediction.Cluster(actors=2))
    write_pictures(tmp_path / "photos", 1)
    saved = lf.save(tiny(), tmp_path / "tiny.safetensors")
    for option in (["--address", "auto"], ["--actors", "2"]):
        assert main(["predict", str(saved), str(tmp_path / "photos"), *option]) == 2
        assert f"{option[0]} means nothing without --engine ray" in capsys.readouterr().err
