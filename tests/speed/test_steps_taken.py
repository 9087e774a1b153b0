"""The steps that a choice names are those that were taken, whatever was remembered and of which model."""

import pytest
import torch
from helpers import randomise

import leanformer as lf
from leanformer.speed import alone, search
from leanformer.speed.memory import described

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "num_classes": 5, "depth": 3}


@pytest.fixture
def gains(tmp_path, monkeypatch):
    """Nothing is compiled, and every step pays wherever it fits; the modules that were timed."""
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    timed = []

    def compared(module, rewrite, *_):
        timed.append(rewrite.name)
        return {"before": 1.0, "after": 0.5, "same": True}

    monkeypatch.setattr(alone, "_compared", compared)
    return timed


def evit(heads):
    return lf.fuse(randomise(lf.apply(lf.create("vit", num_heads=heads, **SMALL), lf.EViT(at=(1,)))).eval())


def test_models_that_print_alike_but_have_other_heads_do_not_share_what_is_remembered(gains):
    wide, narrow = evit(2), evit(8)  # heads of 32 channels, which the kernel of the class row takes, and of 8
    assert repr(wide) == repr(narrow)
    assert described(wide) != described(narrow)
    first = lf.optimize(wide, device="cpu", batch=2)
    assert "attention with class row" in first.choice.steps
    gains.clear()
    second = lf.optimize(narrow, device="cpu", batch=2)
    assert not second.choice.remembered
    assert "attention with class row" not in second.choice.steps
    assert "tokens reorganised in one pass" in gains  # the block prints alike, and is timed anew
    assert lf.optimize(evit(8), device="cpu", batch=2).choice.remembered


def test_a_step_that_finds_nothing_to_do_is_not_told_as_taken(gains):
    steps = ["attention with class row", "patches by product", "RePa by products"]
    choice = search.Choice(2, steps, {"RePa by products": ["blocks.0.ffn"]})
    module = search.after_steps(evit(8), choice)
    assert choice.steps == ["patches by product"]
    assert choice.places == {}
    assert type(module.patch_embed.proj).__name__ == "PatchProduct"
