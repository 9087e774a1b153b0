"""A contest times timm's forms, the optimised backbone and the lean models together, and says whose gain it is."""

import pytest
import torch

import leanformer as lf
from lab import contest as contest_module
from lab.contest import Conditions, compiled_forms, run_contests
from lab.contest_result import Contest
from lab.contest_table import contest_table
from leanformer.measure import Timing, timing

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5}
HERE = {"device": torch.device("cpu"), "batch": 2, "dtype": "float32", "repeats": 2}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setitem(timing.SAMPLE_SECONDS, "cpu", 0.002)


@pytest.fixture(scope="module")
def vit():
    return lf.create("vit", **TINY)


def lean_of(model):
    return lf.fuse(lf.apply(model, lf.EViT(keep_rate=0.5)))


def test_a_contest_has_both_ratios_and_the_share_of_the_macs(vit, monkeypatch):
    seconds = {"backbone eager": 8.0, "backbone compiled": 4.0, "backbone compiled, channels last": 6.0,
               "backbone optimised": 3.0, "eager": 5.0, "optimised": 2.0}  # fmt: skip

    def timed(calls, *arguments, **options):
        return {key: Timing([seconds[key[1]]] * 2, [seconds[key[1]]]) for key in calls}

    monkeypatch.setattr(contest_module, "interleave", timed)
    (found,) = run_contests("vit", vit, vit, {"EViT": lean_of(vit)}, Conditions(**HERE))
    assert set(found.forms) == set(seconds)
    assert found.over_timm == 2.0  # over the fastest that timm has, not over the optimised backbone
    assert found.over_own == 1.5
    assert found.mac_ratio == pytest.approx(lf.measure.count(vit).macs / lf.measure.count(lean_of(vit)).macs)
    assert found.share == pytest.approx(1.5 / found.mac_ratio)
    assert found.row()["share"] == found.share


def test_both_the_backbone_and_the_lean_model_are_called_with_the_batch_after_the_same_optimize(vit, monkeypatch):
    asked, called = [], []

    class Fast:
        class choice:
            steps, error = ("a step",), 0.0

        def __init__(self, model):
            self.model = model

        def __call__(self, images):
            called.append(tuple(images.shape))
            return self.model(images)

    def optimize(model, **options):
        asked.append({key: value for key, value in options.items() if key != "fp8"})
        return Fast(model.eval())

    monkeypatch.setattr(contest_module, "optimize", optimize)
    (found,) = run_contests("vit", vit, vit, {"EViT": lean_of(vit)}, Conditions(**HERE))
    assert asked[0] == asked[1]
    assert set(called) == {(2, 3, 32, 32)}
    assert found.steps == found.backbone_steps == ("a step",)


def test_a_model_that_fails_costs_no_other_its_row(vit):
    def refuse():
        raise RuntimeError("no such thing")

    leans = {"good": lean_of(vit), "bad": torch.nn.Linear(2, 2)}
    found = {c.label: c for c in run_contests("vit", vit, vit, leans, Conditions(**HERE), peers={"peer": refuse})}
    assert found["good"].over_own is not None
    assert found["bad"].failed
    assert found["peer"].failed == "RuntimeError: no such thing"
    assert contest_table(list(found.values())).row_count == 3


def test_a_peer_is_judged_by_its_compiled_form_and_has_no_gain_of_its_own(vit):
    (found,) = run_contests("vit", vit, vit, {}, Conditions(**HERE), peers={"smaller": lambda: lean_of(vit)})
    assert found.over_timm is not None
    assert found.over_own is None
    assert "optimised" not in found.forms


def test_each_runtime_has_a_row_with_both_models_in_it(vit):
    runtimes = {"other": lambda model: model.eval()}
    rows = run_contests("vit", vit, vit, {"EViT": lean_of(vit)}, Conditions(**HERE, runtimes=runtimes))
    assert [row.runtime for row in rows] == ["torch", "other"]
    assert {"backbone other", "other"} <= set(rows[1].forms)
    assert "optimised" not in rows[1].forms
    assert "other" not in rows[0].forms
    assert rows[1].over_own is not None


def test_fp8_products_stand_beside_the_others_and_do_not_count(vit, monkeypatch):
    from leanformer.speed import fp8

    monkeypatch.setattr(fp8, "require_fp8", lambda device, dtype: None)
    monkeypatch.setattr(contest_module, "installed", lambda peer: False)
    conditions = Conditions(device=torch.device("cpu"), batch=2, dtype="bfloat16", repeats=1, fp8=True)
    (found,) = run_contests("vit", vit, vit, {"EViT": lean_of(vit)}, conditions)
    assert found.errors["fp8"] > 0
    assert found.fp8_over_timm is not None
    assert found.over_timm == pytest.approx(found.forms["optimised"] / found.fastest_of_timm)
    assert "its error" in [column.header for column in contest_table([found]).columns]


def test_a_row_goes_without_fp8_products_that_cannot_be_made_and_says_why(vit, monkeypatch):
    from leanformer.speed import fp8

    monkeypatch.setattr(fp8, "require_fp8", lambda device, dtype: None)
    plain = contest_module.optimize

    def no_fp8(model, fp8=False, **options):
        if fp8:
            raise RuntimeError("no such unit")
        return plain(model, **options)

    monkeypatch.setattr(contest_module, "optimize", no_fp8)
    monkeypatch.setattr(contest_module, "installed", lambda peer: False)
    (found,) = run_contests("vit", vit, vit, {"EViT": lean_of(vit)}, Conditions(**HERE, fp8=True))
    assert not found.failed
    assert found.over_own is not None
    assert found.fp8_over_timm is None
    assert found.missing == {"fp8": "RuntimeError: no such unit"}


def test_torchaos_fp8_products_are_timed_beside_ours_where_it_is_installed(vit, monkeypatch):
    api = pytest.importorskip("torchao.quantization.quant_api")
    from leanformer.speed import fp8

    monkeypatch.setattr(fp8, "require_fp8", lambda device, dtype: None)
    monkeypatch.setattr(api, "_check_hardware_support", lambda granularity: None)  # else it refuses a CPU
    conditions = Conditions(device=torch.device("cpu"), batch=2, dtype="bfloat16", repeats=1, fp8=True)
    (found,) = run_contests("vit", vit, vit, {"EViT": lean_of(vit)}, conditions)
    assert not found.failed
    assert found.forms["torchao's fp8, compiled"] > 0
    shown = contest_table([found])
    assert "with torchao's" in [column.header for column in shown.columns]


def test_old_rows_without_the_new_ratios_show_blanks():
    forms = {"backbone eager": 10.0, "backbone compiled": 20.0, "eager": 25.0, "compiled": 28.0, "optimised": 30.0}
    old = Contest("lean", "vit", 1, 32, "float32", forms=forms, mac_ratio=2.0)
    assert contest_table([old]).row_count == 1
    assert old.share is None


def test_channels_last_is_tried_where_it_is_asked_for():
    forms = compiled_forms(torch.nn.Conv2d(3, 3, 3), torch.zeros(1, 3, 8, 8), channels_last=True)
    assert list(forms) == ["eager", "compiled", "compiled, channels last"]
    assert all(call().shape == (1, 3, 6, 6) for call in forms.values())
