"""What people are told of a run: on the page and by the command line."""

from pathlib import Path

import pytest
import torch
from torch import nn

from leanformer.cli.lean import _report
from leanformer.search.clock import MACS_A_SECOND, Place, clock_for
from leanformer.search.outcome import Lean
from leanformer.search.plan import Plan
from leanformer.search.report import _points, _verdict

TARGET = {"speedup": 2.0, "latency": None, "max_drop": None, "curve": None}
SMALLER = Plan((16, 16))


def record_of(runtime: str, **final: float) -> dict:
    return {
        "about": {"place": ["cpu", 8, "torch.float32", runtime], "target": TARGET},
        "teacher": {"seconds": 1.0},
        "final": {"met": True, "speedup": 1.99, "seconds": 0.5, "agreement": 90.0, "images": 20, **final},
    }


def test_a_target_that_is_nearly_met_is_told_as_nothing_was_timed_where_nothing_was():
    assert "is met, but for what timing varies by" in _verdict(record_of("eager"))
    counted = _verdict(record_of("macs"))
    assert "is met to within 2%" in counted
    assert "timing varies" not in counted


def test_long_times_and_large_models_are_told_without_powers_of_ten():
    place = Place(torch.device("cpu"), 8, torch.float32)
    assert clock_for(place, "eager").words(1.2542) == "1,254 ms a batch"
    assert clock_for(place, "macs").words(8 * 1.2542e9 / MACS_A_SECOND) == "1,254 million multiplications an image"


def test_plans_that_were_timed_stand_at_their_measured_speed():
    tried = {"plan": SMALLER.to_json(), "predicted": 0.5, "agreement": 90.0}
    record = {**record_of("eager"), "candidates": [tried, {**tried, "measured": 0.8}], "chosen": tried}
    assert [point["speedup"] for point in _points(record)] == [2.0, pytest.approx(1.25)]


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("torch", "1.99 times as fast as the optimised model"),
        ("eager", "1.99 times as fast as the model itself by eager"),
        ("openvino", "1.99 times as fast as the model itself by openvino"),
        ("macs", "1.99 times fewer multiplications (nothing was timed)"),
    ],
)
def test_the_command_line_says_over_what_the_lean_model_is_faster(capsys, runtime, words):
    record = record_of(runtime, teacher_knn_top1=80.0, knn_top1=78.0)
    assert (
        _report(Lean(nn.Identity(), SMALLER, 1.99, True, record, files=(Path("lean.safetensors"),)), Path("out")) == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    assert words in said
    assert "top-1 by neighbours 80.0 → 78.0%" in said
