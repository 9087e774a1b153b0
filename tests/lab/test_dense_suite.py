"""The latency of dense models: every form of every chosen model is timed and written, beside the paper's."""

import json
import os
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch

import leanformer as lf
from lab import dense
from lab.__main__ import main
from lab.studies import dense_timing
from leanformer.papers.repa.dense import TABLE6


def small(kind: str) -> torch.nn.Module:
    body = lf.create("metaformer", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))
    if kind == "UperNet":
        return lf.tasks.segmenter("upernet", body, 2, channels=64)
    return lf.tasks.detector("mask_rcnn", body, 2, channels=16, min_size=64, max_size=96)


def test_each_form_of_each_model_is_timed_and_stands_beside_the_papers_latency(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    monkeypatch.setattr(lf, "optimize", lambda model, **_: model)
    monkeypatch.setattr(dense, "build_dense", lambda kind, backbone: small(kind))
    path, only = tmp_path / "dense.json", "Mask R-CNN, Swin-Small|UperNet, Swin-Small"
    assert (
        main(
            ["dense", "--device", "cpu", "--size", "64", "96", "--repeats", "1", "--only", only, "--output", str(path)]
        )
        == 0
    )
    rows = json.loads(path.read_text())["rows"]
    assert [row["label"] for row in rows] == ["Mask R-CNN, Swin-Small", "UperNet, Swin-Small"]
    for row in rows:
        assert set(row["milliseconds"]) == set(dense.FORMS)
        assert row["milliseconds"]["backbone"] < row["milliseconds"]["eager"]
        assert row["paper"] == TABLE6[row["kind"]][row["backbone"]][0]
    shown = capsys.readouterr().out
    assert "62.5" in shown
    assert "2 of 2" in shown


def test_a_run_that_was_stopped_goes_on_with_the_models_that_its_file_lacks(tmp_path, capsys, monkeypatch):
    made = []
    monkeypatch.setattr(dense, "build_dense", lambda kind, backbone: made.append(backbone) or small("Mask R-CNN"))
    path, first, second = tmp_path / "dense.json", "RetinaNet, Swin-Small", "RetinaNet, RePa-Swin-Small"
    command = ["dense", "--device", "cpu", "--size", "64", "96", "--repeats", "1", "--forms", "eager"]
    for step in (["--only", "Mask R-CNN, Swin-Base"], ["--only", first], ["--only", f"Mask R-CNN, Swin-Base|{first}"]):
        assert main([*command, "--output", str(path), *step]) == 0
    assert made == ["Swin-Base", "Swin-Small"]
    assert main([*command, "--output", str(path), "--only", f"{first}|{second}"]) == 0
    assert made == ["Swin-Base", "Swin-Small", "Swin-Small", "RePa-Swin-Small"]
    assert [row["label"] for row in json.loads(path.read_text())["rows"]] == [first, second, "Mask R-CNN, Swin-Base"]
    monkeypatch.setattr(dense_timing, "commit", lambda: "another")
    capsys.readouterr()
    assert main([*command, "--output", str(path), "--only", first]) == 0
    assert [row["label"] for row in json.loads(path.read_text())["rows"]] == [first]


def test_processes_that_compile_share_the_work_and_the_cores(tmp_path, monkeypatch):
    monkeypatch.delenv(dense_timing.THREADS, raising=False)
    how = dense_timing.Conditions(device=torch.device("cpu"), forms=("eager", "compiled backbone", "optimised"))
    entries = [dense_timing.Entry("", str(number), partial(Writes, tmp_path), (3, 4, 4)) for number in range(3)]
    dense_timing.compile_ahead(entries, how, workers=2)
    cores = str(max(1, (os.cpu_count() or 1) // 2))
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == [cores] * 6
    assert dense_timing.THREADS not in os.environ


class Writes(torch.nn.Module):
    """Leaves a file with what it knows of the compiler's threads, when it is made, and cannot be run."""

    def __init__(self, folder: Path):
        super().__init__()
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            file.write(os.environ[dense_timing.THREADS])


def test_the_suite_has_the_twelve_models_of_the_table_and_poolformers_beside_riformers():
    labels = [entry.label for entry in dense.entries()]
    assert len(labels) == 12 + 3 * 4 == len(set(labels))
    assert sum(bool(entry.paper) for entry in dense.entries()) == 12


def test_an_unknown_form_is_refused(capsys):
    assert main(["dense", "--forms", "fast"]) == 2
    assert "unknown form 'fast'; known: eager, backbone, compiled backbone, optimised" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_real_riformer_under_semantic_fpn_is_counted():
    entry = next(entry for entry in dense.entries() if entry.label == "Semantic FPN, RIFormer-S12")
    with torch.device("meta"):
        model = entry.build()
    assert lf.measure.count(model, entry.size).macs > 1e9
