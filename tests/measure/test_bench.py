"""compare measures what it says, in one table and one JSON schema."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import leanformer as lf
from leanformer.cli import main
from leanformer.measure import bench, results
from leanformer.measure.load_by_others import LoadByOthers
from leanformer.measure.repeat_runs import disagreements
from leanformer.measure.timing import Timing, interleave

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "num_classes": 5}


def test_optimised_models_stand_beside_the_others(monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    sets = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
    arguments = ["bench", "vit", *sets, "--apply", "evit", "--device", "cpu", "--modes", "eager", "optimised"]
    assert main([*arguments, "--batches", "1", "--repeats", "1"]) == 0
    assert capsys.readouterr().out.count("optimised") == 2


def test_models_are_timed_in_several_layouts_of_memory(monkeypatch):
    layouts = []
    monkeypatch.setattr(bench, "relocate", lambda twin, step: layouts.append(step))
    model = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2)
    row = lf.measure.compare([model], device="cpu", batches=[1], modes=["eager"], repeats=5).rows[0]
    assert layouts == [0, 1, 2]
    assert row.throughput > 0


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


def test_a_speed_up_is_taken_turn_by_turn_so_that_a_slow_while_does_not_show():
    quiet, busy = Timing(repeats=[1.0, 1.0, 3.0]), Timing(repeats=[2.0, 2.0, 6.0])
    assert quiet.speedup(busy) == (2.0, 0.0)
    assert Timing(repeats=[1.0, 2.0]).speedup(Timing(repeats=[2.0, 2.0]))[1] == pytest.approx(1 / 3)


def test_two_runs_disagree_only_beyond_both_spreads():
    row = {"model": "vit", "mode": "eager", "batch": 1, "dtype": "float32", "throughput": 100.0, "spread": 0.03,
           "speedup": 1.5, "speedup_spread": 0.01}  # fmt: skip
    assert disagreements([row], [row | {"throughput": 106.0}]) == []
    assert len(disagreements([row], [row | {"throughput": 107.0, "speedup": 1.6}])) == 2
    with pytest.raises(ValueError, match="no row in common"):
        disagreements([row], [row | {"batch": 8}])


def test_a_program_beside_the_measurement_is_noticed_and_the_own_work_is_not():
    machine = LoadByOthers()
    if machine.share() is None:
        pytest.skip("this system does not tell how busy its CPUs are")
    beside = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(1.0)
        assert machine.share() > 0.2
    finally:
        beside.kill()
        beside.wait()
    marks = iter([(10.0, 4.0, 100.0), (15.0, 9.0, 110.0)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leanformer.measure.load_by_others._marks", lambda: next(marks))
        assert LoadByOthers().share() == 0.0


def test_a_long_call_is_a_sample_by_itself(monkeypatch):
    monkeypatch.setattr("leanformer.measure.timing.LONG_SECONDS", 0.01)
    called = []
    interleave({"long": lambda: called.append(time.sleep(0.02))}, torch.device("cpu"), repeats=2, seconds=0.02)
    assert len(called) == 2 + 2


def test_bench_says_whether_it_agrees_with_an_earlier_run(tmp_path, capsys):
    path = tmp_path / "bench.json"
    sets = [part for key, value in {**SMALL, "depth": 1}.items() for part in ("--set", f"{key}={value}")]
    arguments = ["bench", "vit", *sets, "--batches", "1", "--modes", "eager", "--repeats", "2"]
    assert main([*arguments, "--output", str(path)]) == 0
    before = json.loads(path.read_text())
    for spread, code, told in ((1e9, 0, "no figures differ"), (0.0, 1, "figures differ")):
        for row in before["rows"]:
            row["spread"], row["throughput"] = spread, 1.0
        path.write_text(json.dumps(before))
        assert main([*arguments, "--compare-with", str(path)]) == code
        assert told in " ".join(capsys.readouterr().out.split())


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


def test_the_commit_is_asked_for_once_and_changes_anywhere_in_the_package_count(monkeypatch):
    asked = []
    monkeypatch.delenv("LEANFORMER_COMMIT", raising=False)
    monkeypatch.setattr(results, "_ask", lambda *command: asked.append(command) or "abc")
    results._commit_of_code.cache_clear()
    try:
        assert [results.commit() for _ in range(3)] == ["abc+"] * 3
    finally:
        results._commit_of_code.cache_clear()
    assert [command[3] for command in asked] == ["rev-parse", "status"]
    assert {Path(command[2]) for command in asked} == {Path(lf.__file__).parent}


def test_kernels_are_shared_within_the_block_alone():
    from torch._inductor import config

    before = config.triton.unique_kernel_names
    with lf.measure.shared_kernels():
        assert config.triton.unique_kernel_names is False
    assert config.triton.unique_kernel_names == before


def test_every_clock_reads_the_same_time():
    calls, total = lf.measure.time_calls(lambda: time.sleep(0.01), 3, torch.device("cpu"))
    assert total == pytest.approx(sum(calls))
    assert min(calls) >= 0.01


def test_rows_are_resumed_from_a_file_of_the_same_run_alone(tmp_path):
    path = lf.measure.write_result(lf.measure.record("sweep", [{"a": 1}], data="photos"), tmp_path / "rows.json")
    assert lf.measure.rows_to_resume(path, {"kind": "sweep", "data": "photos"}) == [{"a": 1}]
    with pytest.raises(ValueError, match="holds another run's result"):
        lf.measure.rows_to_resume(path, {"data": "others"})


def test_methods_compose_and_further_rows_come_from_against(tmp_path, capsys):
    sets = [word for each in ("img_size=32", "patch_size=8", "embed_dim=32", "depth=4", "num_heads=2", "num_classes=5")
            for word in ("--set", each)]  # fmt: skip
    other, output = str(tmp_path / "other.safetensors"), tmp_path / "bench.json"
    assert main(["apply", "vit", *sets, "--output", other]) == 0
    rows = ["--apply", "repa", "--apply", "evit", "--against", "repa:idle_ratio=0.5", "--against", "evit+repa"]
    short = ["--device", "cpu", "--modes", "eager", "--batches", "1", "--repeats", "1", "--output", str(output)]
    assert main(["bench", "vit", *sets, *rows, "--against", other, *short]) == 0
    named = [row["model"] for row in json.loads(output.read_text())["rows"]]
    assert named == ["vit", other, "vit repa+evit", "vit repa:idle_ratio=0.5", "vit evit+repa"]
    capsys.readouterr()
