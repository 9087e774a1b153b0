"""versus times a backbone and the lean models made from it together, and judges by the backbone's fastest form."""

import torch

import leanformer as lf
from leanformer.measure.versus import Contest, contest_table, versus


def test_a_contest_is_judged_by_the_fastest_form_of_the_backbone():
    forms = {"backbone eager": 10.0, "backbone compiled": 20.0, "eager": 25.0, "compiled": 28.0, "optimised": 30.0}
    contest = Contest("lean", "vit", 1, 32, "float32", forms, dict.fromkeys(forms, 0.0), mac_ratio=2.0)
    assert contest.yardstick == 20.0
    assert contest.speedup == 1.5


def test_versus_times_every_form_in_one_run(monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    teacher = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2, num_classes=5)
    lean = lf.fuse(lf.apply(teacher, lf.EViT(keep_rate=0.5)))
    contests = versus(
        teacher, {"EViT": lean}, lf.optimize, device=torch.device("cpu"), batch=2, dtype="float32", size=(3, 32, 32),
        repeats=2,
    )  # fmt: skip
    assert set(contests[0].forms) == {
        "backbone eager", "backbone compiled", "backbone compiled, channels last", "eager", "compiled", "optimised",
    }  # fmt: skip
    assert contests[0].mac_ratio > 1
    assert "patches by product" in contests[0].steps
    assert contest_table(contests).row_count == 1
