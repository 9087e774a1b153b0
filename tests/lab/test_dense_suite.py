"""The latency of dense models: every form of every chosen model is timed and written, beside the paper's."""

import json

import pytest
import torch

import leanformer as lf
from lab import dense
from lab.__main__ import main
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
    assert "62.5" in capsys.readouterr().out


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
