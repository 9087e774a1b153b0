"""What optimize cannot do is told in one line, before anything is computed."""

import pytest
import torch
from helpers import randomise

import leanformer as lf

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "num_classes": 5, "depth": 2}


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    return randomise(lf.create("vit", **SMALL)).eval()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"batch": 0}, r"batch is 0; give a whole number from 1 on"),
        ({"batch": 2.0}, r"batch is 2\.0; give a whole number"),
        ({"repeats": 0}, r"repeats is 0; give a whole number"),
        ({"device": "nowhere"}, r"unknown device 'nowhere'; there are: cpu"),
        ({"device": "cuda:99"}, r"device 'cuda:99' is not there; there are: cpu"),
        ({"dtype": "float64"}, r"unknown dtype 'float64'; known: float32, bfloat16, float16"),  # no file could tell it
        ({"dtype": "float8_e4m3fn"}, r"unknown dtype 'float8_e4m3fn'"),
        ({"search": None}, r"search is 'None'; give 'modules', 'model' or False"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(model, asked, told):
    with pytest.raises(ValueError, match=told) as refused:
        lf.optimize(model, **{"device": "cpu", "batch": 2, **asked})
    assert "\n" not in str(refused.value)


def test_a_model_that_gives_no_numbers_in_a_dtype_is_no_bug_of_ours(model):
    model.head.weight.data *= 1e6  # more than float16 holds
    with pytest.raises(ValueError, match=r"answers in float16 are no numbers; .*'bfloat16' and 'float32' hold"):
        lf.optimize(model, device="cpu", batch=2, dtype="float16")
    assert lf.optimize(model, device="cpu", batch=2, dtype="bfloat16", search=False).choice.error < 0.1
