"""Many ways to run a trained ViT with fewer tokens: their MACs match, and the command goes on where it stopped."""

import json

import pytest
import torch
from helpers import randomise

import leanformer as lf
from lab import training_free as verb
from lab.__main__ import main
from lab.studies.training_free import cost, course, exported, training_free
from leanformer.measure import count

TINY = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 8, "num_heads": 2, "num_classes": 5}


@pytest.fixture
def vit():
    return randomise(lf.create("vit", **TINY)).eval()


def test_costs_differ_as_the_counted_macs_do(vit):
    def left(block, patches):
        return {2: 45, 4: 32, 6: 23}.get(block, patches)

    lean = lf.apply(vit, lf.EViT(keep_rate=0.7, at=(2, 4, 6), fuse_tokens=False))
    saved = cost([(64, 64)] * 8, 32, 128) - cost(course(left, 8, 64), 32, 128)
    assert count(vit).macs - count(lean).macs == saved


def test_what_is_matched_has_the_macs_of_evit(vit):
    candidates = training_free(vit)
    assert len({candidate.model for candidate in candidates}) == len(candidates)
    chosen = [candidates[index] for index in (3, 19, 21, 22)]
    families = ["EViT at 2,4,6", "EViT at 2-7", "merging in every block", "merging at 2,4,6"]
    assert [candidate.family for candidate in chosen] == families
    wanted, *others = (count(candidate.make(vit)).macs for candidate in chosen)
    assert others == pytest.approx([wanted] * 3, rel=0.04)  # tokens and rates come in steps


def test_rows_of_exported_files_are_taken_over(tmp_path):
    row = {"name": "onnx", "file": "vit.onnx", "top1": 80.0, "top5": 90.0}
    whole = {"kind": "export", "model": "vit", "data": "pack:there/photographs.npz"}
    rows = [row, {**row, "name": "pytorch", "file": None}, {**row, "name": "executorch", "top1": None}]
    (tmp_path / "export_vit.json").write_text(json.dumps({**whole, "rows": rows}))
    (tmp_path / "export_other.json").write_text(json.dumps({**whole, "model": "other", "rows": rows}))
    assert exported(tmp_path, "vit", "pack:here/photographs.npz") == [
        {"family": "exported", "model": "onnx", "top1": 80.0, "top5": 90.0}
    ]


def test_the_command_writes_all_rows_and_a_figure_and_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    images, labels = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8), torch.arange(4)
    monkeypatch.setattr(verb, "open_data", lambda *_: lf.train.open_data((images.permute(0, 3, 1, 2), labels), "val"))
    every = verb.candidates_of
    monkeypatch.setattr(verb, "candidates_of", lambda model: every(model)[::18])
    arguments = ["training-free", "vit", "--data", "here", "--output", str(tmp_path / "rows.json")]
    arguments += ["--figure", str(tmp_path / "rows.png"), *(f"--set={key}={value}" for key, value in TINY.items())]
    assert main([*arguments, "--only", "nothing"]) == 2
    assert "no name contains 'nothing'; there are: " in capsys.readouterr().err
    assert main([*arguments, "--only", "no fusion | nothing"]) == 0
    assert all("no fusion" in row["model"] for row in json.loads((tmp_path / "rows.json").read_text())["rows"])
    assert main(arguments) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert {row["family"] for row in rows} >= {"backbone", "EViT at 1,2,3"}
    assert rows[0]["family"] == "backbone"
    assert (tmp_path / "rows.png").stat().st_size > 1000
    monkeypatch.setattr(verb, "_accuracy", lambda *_: pytest.fail("measured again"))
    assert main(arguments) == 0
    assert "EViT" in capsys.readouterr().out
