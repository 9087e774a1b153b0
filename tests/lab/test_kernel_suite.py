"""The suite of kernels: every case runs, is compared with float32, and is written; one that fails costs no other."""

import json

import pytest
import torch

from lab import kernel_cases, kernel_suite
from lab.__main__ import main

SUITE = ["kernels", "--device", "cpu", "--repeats", "1"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Small shapes, nothing compiled, rates that need no measuring."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(kernel_cases, "STAGES", {"tiny": (16, 16, 16, 16)})
    monkeypatch.setattr(kernel_cases, "LINEARS", {"tiny": (32, 16)})
    monkeypatch.setattr(kernel_suite, "memory_rate", lambda device: 1e10)
    monkeypatch.setattr(kernel_suite, "matrix_peak", lambda device, dtype: 1e10)


def test_every_case_is_timed_against_compiled_torch_and_written(tmp_path, capsys):
    path = tmp_path / "kernels.json"
    assert main([*SUITE, "--dtype", "bfloat16", "--batches", "1", "--output", str(path)]) == 0
    result = json.loads(path.read_text())
    assert result["kind"] == "kernels"
    assert len(result["rows"]) == len(list(kernel_cases.cases((1,)))) > 20
    for row in result["rows"]:
        assert not row["failed"], row
        assert {"kernel", kernel_suite.TORCH} <= set(row["microseconds"])
        assert row["error"] < (5e-2 if "fp8" in row["label"] else 1e-2)
        assert row["floor"] > 0
    assert "attention alone" in result["rows"][0]["microseconds"]
    assert "pooling with its norm" in capsys.readouterr().out


def test_a_kernel_that_fails_says_so_and_leaves_the_others_alone(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("out of registers")

    refuse.plain = kernel_cases.reorganise_in_one_pass.plain  # type: ignore[attr-defined]
    monkeypatch.setattr(kernel_cases, "reorganise_in_one_pass", refuse)
    path = tmp_path / "kernels.json"
    options = [
        "--dtype",
        "float32",
        "--batches",
        "1",
        "--only",
        "class row, DeiT-S, 1|reorganised, DeiT-S, 1",
        "--output",
        str(path),
    ]
    assert main([*SUITE, *options]) == 0
    failed = {row["label"].split(",")[0]: row["failed"] for row in json.loads(path.read_text())["rows"]}
    assert failed == {"attention with class row": "", "tokens reorganised": "RuntimeError: out of registers"}


def test_a_run_that_was_cut_short_goes_on_where_it_stopped_and_tells_its_progress(tmp_path, monkeypatch, capsys):
    path, measured = tmp_path / "kernels.json", []
    real = kernel_suite._measured
    monkeypatch.setattr(kernel_suite, "_measured", lambda case, *more: measured.append(case.label) or real(case, *more))
    words = [*SUITE, "--dtype", "float32", "--batches", "1", "--output", str(path), "--only"]
    assert main([*words, "tokens ranked"]) == 0
    assert main([*words, "tokens ranked|tokens slimmed"]) == 0
    assert [label.split(",")[0] for label in measured] == ["tokens ranked", "tokens slimmed"]
    assert len(json.loads(path.read_text())["rows"]) == 2
    assert "1 of 1 after" in capsys.readouterr().out
    monkeypatch.setenv("LEANFORMER_COMMIT", "another")
    assert main([*words, "tokens ranked"]) == 0
    assert len(measured) == 3
