"""versus times a backbone and the lean models made from it together, and judges by the backbone's fastest form."""

import torch

import leanformer as lf
from lab.versus import Contest, contest_table, versus


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


def test_fp8_products_stand_beside_the_others_and_do_not_count_for_the_speed_up(monkeypatch):
    from leanformer.speed import fp8

    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(fp8, "require_fp8", lambda device, dtype: None)
    teacher = lf.create("vit", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2, num_classes=5)
    contest = versus(
        teacher, {"EViT": lf.fuse(lf.apply(teacher, lf.EViT()))}, lf.optimize, device=torch.device("cpu"), batch=2,
        dtype="bfloat16", size=(3, 32, 32), repeats=1, fp8=True,
    )[0]  # fmt: skip
    assert contest.errors["fp8"] > 0
    assert contest.fp8_speedup == contest.forms["fp8"] / contest.yardstick
    contest.forms["fp8"] = 1e9
    assert contest.speedup < 1e3
    assert "its error" in [column.header for column in contest_table([contest]).columns]
