"""Suites on the CPU with tiny models: every row can be made, rows are written as they come and resumed."""

import json

import pytest
import torch

import leanformer as lf
from lab import __main__ as laboratory
from lab import contest, families, suite
from lab.__main__ import main
from lab.families import MODELS, FamilyRow, judged, takes_its_methods
from lab.suite_rows import GPU, SUITES
from leanformer.backbones.census import FAMILIES
from leanformer.measure import Timing, timing
from leanformer.speed import fp8


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setitem(timing.SAMPLE_SECONDS, "cpu", 0.002)


def rows_in(path):
    return json.loads(path.read_text())["rows"]


def dry(path, *words):
    return main(["suite", *words, "--device", "cpu", "--dry-run", "--output", str(path)])


@pytest.mark.parametrize("name", SUITES)
def test_every_row_has_a_name_of_its_own_and_a_tiny_form_that_takes_its_methods(name):
    rows = SUITES[name](())
    assert len({(entry.label, batch) for entry, batch in rows}) == len(rows)
    for entry in {entry.label: entry for entry, _ in rows}.values():
        assert takes_its_methods(entry.tiny()), entry


def test_the_rows_of_the_gpu_are_those_of_the_published_table_at_any_batches():
    assert len(GPU) == 23
    assert {batch for _, batch in SUITES["gpu"]((1, 8, 1024))} == {1, 8, 1024}
    assert {batch for _, batch in SUITES["gpu"](())} == {1, 256}


def test_a_backbone_is_timed_once_for_all_its_rows_which_tell_both_ratios(tmp_path, monkeypatch, capsys):
    groups = []
    run = suite.run_contests
    monkeypatch.setattr(suite, "run_contests", lambda *a, **k: groups.append(list(a[3])) or run(*a, **k))
    path = tmp_path / "gpu.json"
    assert dry(path, "gpu", "--batches", "2", "--only", "0.5 on DeiT-S|RePa 0.75 on DeiT-S|CAFormer") == 0
    assert groups == [["EViT 0.5 on DeiT-S", "RePa 0.75 on DeiT-S"], ["CAFormer-S18 as it is"]]
    rows = rows_in(path)
    assert [row["label"] for row in rows] == [label for group in groups for label in group]
    for row in rows:
        assert row["over_timm"] > 0
        assert row["over_own"] > 0
        assert row["share"] == pytest.approx(row["over_own"] / row["mac_ratio"])
        assert {"backbone eager", "backbone compiled", "backbone optimised", "optimised"} <= set(row["forms"])
        assert {"command", "commit"} <= set(row)
    assert rows[0]["paper_speedup"] == "1.85"
    assert "over own" in capsys.readouterr().out


def test_a_suite_goes_on_where_it_stopped_and_measures_again_at_another_commit(tmp_path, monkeypatch):
    path, measured = tmp_path / "gpu.json", []
    run = suite.run_contests
    monkeypatch.setattr(suite, "run_contests", lambda *a, **k: measured.append(a[0]) or run(*a, **k))
    assert dry(path, "gpu", "--batch", "2", "--only", "Mixer") == 0
    assert dry(path, "gpu", "--batch", "2", "--only", "Mixer|Swin") == 0
    assert measured == ["mixer", "swin"]
    assert len(rows_in(path)) == 2
    monkeypatch.setenv("LEANFORMER_COMMIT", "another")
    assert dry(path, "gpu", "--batch", "2", "--only", "Mixer") == 0
    assert measured == ["mixer", "swin", "mixer"]
    assert [row["commit"] for row in rows_in(path)] == ["another"]
    assert main(["suite", "gpu", "--device", "cpu", "--output", str(path)]) == 2  # never over rows of tiny models


def test_a_group_that_fails_is_told_and_costs_no_other(tmp_path, monkeypatch, capsys):
    run = suite.run_contests

    def fails(name, *arguments, **options):
        if name == "mixer":
            raise RuntimeError("no memory left")
        return run(name, *arguments, **options)

    monkeypatch.setattr(suite, "run_contests", fails)
    assert dry(tmp_path / "gpu.json", "gpu", "--batches", "2", "--only", "Mixer|Swin") == 1
    assert {row["backbone"]: bool(row["failed"]) for row in rows_in(tmp_path / "gpu.json")} == {
        "mixer": True,
        "swin": False,
    }
    assert "no memory left" in capsys.readouterr().out


def test_the_cpu_has_a_row_for_each_runtime_that_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "installed", lambda names: ("onnxruntime",))
    monkeypatch.setattr(suite, "runtime_opener", lambda name, folder: lambda model: model.eval())
    path = tmp_path / "cpu.json"
    assert dry(path, "cpu", "--only", "EViT 0.7 on DeiT-S batch 8.") == 0
    assert [row["runtime"] for row in rows_in(path)] == ["torch", "onnxruntime"]
    assert all(row["dtype"] == "float32" and row["over_own"] > 0 for row in rows_in(path))


def test_families_of_the_census_all_have_a_model_that_stands_for_them():
    assert set(FAMILIES) <= set(MODELS)


def test_a_family_is_measured_with_each_method_it_takes_without_search_and_with_it(tmp_path, capsys):
    path = tmp_path / "families.json"
    words = ["families", "--batch", "2", "--only", "swin_transformer: backbone|mlp_mixer: r"]
    assert dry(path, *words, "--search") == 0
    rows = rows_in(path)
    assert [(row["family"], row["method"]) for row in rows] == [
        ("swin_transformer", ""), ("mlp_mixer", "repa"), ("mlp_mixer", "riformer"),
    ]  # fmt: skip
    for row in rows:
        assert not row["failed"]
        assert {"compiled", "optimised", "searched"} <= set(row["forms"])
        assert set(row["ratios"]) == {"optimised", "searched"}
    assert "loss" in capsys.readouterr().out
    before = path.read_text()
    assert dry(path, *words) == 0  # nothing is left to measure
    assert path.read_text() == before


def test_rows_without_a_search_stay_until_each_is_measured_again_with_it(tmp_path):
    path = tmp_path / "families.json"
    words = ["families", "--batch", "2", "--only"]
    assert dry(path, *words, "swin_transformer: backbone|mlp_mixer: backbone") == 0
    assert dry(path, *words, "swin_transformer: backbone", "--search") == 0
    assert {row["family"]: "searched" in row["forms"] for row in rows_in(path)} == {
        "mlp_mixer": False,
        "swin_transformer": True,
    }


def test_a_loss_beyond_noise_is_told_for_each_form():
    compiled, graph, same, slow = (Timing([s, s]) for s in (1.2, 1.0, 1.005, 1.1))
    row = FamilyRow("mlp_mixer", "mixer_b16_224", "", 1, "float32")
    forms = {"eager": slow, "compiled": compiled, "compiled, graph": graph, "optimised": slow, "searched": same}
    assert judged(row, forms).loss == "optimised"
    assert judged(row, forms | {"optimised": same}).loss == ""


def test_a_loss_is_an_exit_code(monkeypatch):
    lost = FamilyRow("swin_transformer", "swin", "", 1, "float32", ratios={"optimised": 0.9})
    monkeypatch.setattr(families, "compile_together", lambda jobs, workers, go: [(job, lost) for job in jobs])
    assert main(["suite", "families", "--device", "cpu", "--only", "swin_transformer: backbone batch 1."]) == 1


def test_a_search_beside_others_is_made_again_once_it_is_alone(monkeypatch):
    happened, optimize = [], lf.optimize

    def noted(model, search=True, **options):
        happened.append("search" if search else "optimize")
        return optimize(model, search=False, **options)

    monkeypatch.setattr(lf, "optimize", noted)
    monkeypatch.setattr(contest, "optimize", noted)
    options = suite.Options(device=torch.device("cpu"), dtype="float32", repeats=1, batches=(2,), dry_run=True,
                            only="mlp_mixer: backbone")  # fmt: skip
    (job,) = families._jobs(options, search=True)
    row = job(lambda: happened.append("alone"))
    assert not row.failed
    assert set(row.ratios) == {"optimised", "searched"}
    assert happened == ["optimize", "search", "alone", "search"]
    happened.clear()
    assert set(job().ratios) == {"optimised", "searched"}
    assert happened == ["optimize", "search"]


def test_a_search_is_of_the_families_alone(capsys):
    assert main(["suite", "gpu", "--device", "cpu", "--search"]) == 2
    assert "leave out --search" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpu", "--dtype", "bf16"], "unknown dtype 'bf16'"),
        (["families", "--device", "cuda:99"], "device 'cuda:99' is not there"),
        (["gpu", "--device", "cpu", "--fp8"], "fp8 products need"),
        (["gpu", "--device", "cpu", "--repeats", "0"], "repeats is 0"),
        (["gpu", "--device", "cpu", "--batches", "8", "0"], "batches is 0"),
    ],
)
def test_what_no_row_could_be_measured_with_is_refused_before_the_first(words, message, monkeypatch, capsys):
    monkeypatch.setattr(suite, "compile_together", None)
    monkeypatch.setattr(families, "compile_together", None)
    assert main(["suite", *words]) == 2
    assert message in capsys.readouterr().err


def test_rows_without_fp8_are_measured_again_where_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(contest, "installed", lambda peer: False)
    for place in (fp8, laboratory):
        monkeypatch.setattr(place, "require_fp8", lambda device, dtype: None)
    path, measured = tmp_path / "gpu.json", []
    run = suite.run_contests
    monkeypatch.setattr(suite, "run_contests", lambda *a, **k: measured.append(a[0]) or run(*a, **k))
    words = ["gpu", "--batch", "2", "--dtype", "bfloat16", "--only"]
    assert dry(path, *words, "RePa 0.75 on DeiT-B|Mixer") == 0
    assert dry(path, *words, "RePa 0.75 on DeiT-B", "--fp8") == 0
    assert dry(path, *words, "RePa 0.75 on DeiT-B", "--fp8") == 0
    assert measured == ["deit_base_patch16_224", "mixer", "deit_base_patch16_224"]
    assert {row["label"]: "fp8" in row["forms"] for row in rows_in(path)} == {
        "RePa 0.75 on Mixer-B16": False,
        "RePa 0.75 on DeiT-B": True,
    }


def test_backbones_with_many_rows_compile_first(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        suite, "compile_together", lambda groups, *_: sizes.extend(len(g.entries) for g in groups) or []
    )
    assert dry(tmp_path / "gpu.json", "gpu", "--batches", "1", "2") == 0
    assert sizes == sorted(sizes, reverse=True)


def test_unknown_suites_are_refused(capsys):
    assert main(["suite", "nothing"]) == 2
    assert "gpu, cpu, peers, growth, families" in capsys.readouterr().err
