"""compare measures what it says, in one table and one JSON schema."""

import json

import pytest

import leanformer as lf
from leanformer.cli import main
from leanformer.measure.timing import Timing

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "num_classes": 5}


def test_a_model_of_four_times_the_depth_is_slower_and_the_first_model_is_the_yardstick():
    models = {"deep": lf.create("vit", depth=12, **SMALL), "shallow": lf.create("vit", depth=1, **SMALL)}
    rows = lf.measure.compare(models, device="cpu", batches=[2], modes=["eager"], repeats=3).rows
    assert rows[0].speedup == 1.0
    assert rows[1].speedup > 1.5
    assert rows[1].macs < rows[0].macs
    assert rows[0].latency_p50 <= rows[0].latency_p90 <= rows[0].latency_p99


def test_the_yardstick_is_untouched_by_measuring():
    model = lf.create("vit", depth=1, **SMALL).train()
    lf.measure.compare([model], device="cpu", batches=[1], dtypes=["bfloat16"], modes=["eager"], repeats=2)
    assert model.training
    assert model.head.weight.dtype.itemsize == 4


def test_unknown_modes_and_graphs_on_a_cpu_are_refused():
    model = lf.create("vit", depth=1, **SMALL)
    with pytest.raises(ValueError, match="known: eager, compiled, graph"):
        lf.measure.compare([model], device="cpu", batches=[1], modes=["fast"])
    with pytest.raises(ValueError, match="needs a CUDA device"):
        lf.measure.compare([model], device="cpu", batches=[1], modes=["graph"])


def test_spread_is_half_the_range_over_the_median():
    assert Timing(repeats=[1.0, 2.0, 3.0]).spread == 0.5


def test_bench_writes_json_with_hardware_versions_commit_and_command(tmp_path, capsys):
    path = tmp_path / "results" / "bench.json"
    sets = [part for key, value in {**SMALL, "depth": 2}.items() for part in ("--set", f"{key}={value}")]
    code = main(["bench", "vit", *sets, "--batches", "1", "--modes", "eager", "--repeats", "2", "--output", str(path)])
    assert code == 0
    assert "img/s" in capsys.readouterr().out
    result = json.loads(path.read_text())
    assert result["kind"] == "bench"
    assert {"when", "command", "commit", "versions", "hardware", "rows"} <= set(result)
    assert result["rows"][0]["throughput"] > 0
