"""An optimised model is a value: it has a card, is saved, loaded, exported, described and served like any other."""

import copy
import warnings
from unittest.mock import Mock, call

import pytest
import torch
from helpers import randomise

import leanformer as lf
from leanformer.core import AnyRewrite, plain_of
from leanformer.speed import PlainForm, files, memory
from leanformer.speed.compiled import Compiled, Graph

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "num_classes": 5}


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Nothing is compiled, and every step counts as known to pay."""
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(AnyRewrite, "pays", lambda step, chip, model: step.pays_for(model))


def lean():
    model = lf.apply(lf.create("vit", depth=4, **SMALL), lf.RePa(), lf.EViT())
    return lf.fuse(randomise(model).eval())


def optimised(model=None, **options):
    return lf.optimize(model or lean(), **{"device": "cpu", "batch": 2, "search": False, **options})


def test_the_card_lists_the_steps_and_what_they_were_made_for(quick):
    made_for = lf.card_of(optimised()).optimised
    assert "RePa by products" in made_for["steps"]
    assert {name: made_for[name] for name in ("batch", "size", "dtype", "device", "graph")} == {
        "batch": 2, "size": [3, 32, 32], "dtype": "float32", "device": "cpu", "graph": False,
    }  # fmt: skip


def test_on_a_cpu_the_default_dtype_is_float32(quick):
    assert next(optimised().module.parameters()).dtype == torch.float32


def test_saved_and_loaded_it_is_fast_at_once_and_its_weights_are_the_plain_ones(quick, tmp_path, monkeypatch):
    model, images = lean(), torch.randn(2, 3, 32, 32)
    fast = optimised(model)
    path = lf.save(fast, tmp_path / "fast.safetensors")
    monkeypatch.setattr(files.Task, "repeats", None, raising=False)  # a search would need it
    again = lf.load(path)
    assert again.choice.steps == fast.choice.steps
    assert lf.card_of(again) == lf.card_of(fast)
    assert torch.equal(again(images), fast(images))
    plain = lf.load(path, fast=False)
    assert lf.card_of(plain) == lf.card_of(model)
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), model.state_dict().values(), strict=True))


def test_on_another_kind_of_device_it_loads_plain_and_says_so(quick, tmp_path, monkeypatch):
    path = lf.save(optimised(), tmp_path / "fast.safetensors")
    monkeypatch.setattr(files, "chip_name", lambda device: "another chip")
    with pytest.warns(PlainForm, match="optimised for cpu and this is another chip"):
        again = lf.load(path)
    assert plain_of(again) is again
    assert lf.card_of(again).optimised is None


def test_a_damaged_entry_of_the_card_is_refused(quick, tmp_path):
    fast = optimised()
    fast.card = lf.card_of(fast).replace(optimised={**lf.card_of(fast).optimised, "batch": "many"})
    with pytest.raises(ValueError, match=r"optimised\.batch is 'many'"):
        lf.load(lf.save(fast, tmp_path / "fast.safetensors"))


def test_a_float32_batch_is_cast_and_raw_pixels_are_refused(quick):
    fast = optimised(dtype="bfloat16")
    assert fast(torch.randn(2, 3, 32, 32)).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"not torch\.uint8"):
        fast(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))


def test_autocast_around_it_changes_nothing(quick):
    fast, images = optimised(), torch.randn(2, 3, 32, 32)
    truth = fast(images)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(images), truth)
        assert torch.equal(fast.on(images)(), truth)


def test_a_graph_that_is_dropped_while_another_is_recorded_does_not_wait_for_the_device(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    for recording in (True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda now=recording: now)
        graph = Graph.__new__(Graph)
        graph.device = torch.device("cuda", 0)
        del graph
        assert len(waited) == (0 if recording else 1)


def test_reports_and_other_formats_take_its_plain_form(quick, tmp_path):
    model = lean()
    fast, images = optimised(model), torch.randn(2, 3, 32, 32)
    assert lf.measure.count(fast) == lf.measure.count(model)
    assert "optimised: patches by product" in lf.describe(fast).title
    for found, truth in zip(lf.kept_patches(fast, images), lf.kept_patches(model, images), strict=True):
        assert torch.equal(found, truth)
    path = lf.export.torch(fast, tmp_path / "model.pt2").path
    torch.testing.assert_close(lf.export.open_file(path)(images), model(images), atol=1e-5, rtol=1e-5)
    assert lf.with_options(fast, keep_rate=0.5).blocks[1].mix.keep_rate == 0.5
    assert lf.core.input_of(fast)["input_size"] == (3, 32, 32)


def test_it_is_served(quick):
    from leanformer.serve import of_model

    fast = optimised()
    answers = of_model(fast, "fast", [str(i) for i in range(5)])(torch.zeros(2, 3, 32, 32))
    torch.testing.assert_close(answers[0].probabilities, fast(torch.zeros(1, 3, 32, 32)).softmax(1)[0])


def test_its_weights_are_there_once_and_it_stays_as_it_was_made(quick):
    model = lean()
    fast = optimised(model)
    count = sum(p.numel() for p in model.parameters())
    assert sum(p.numel() for p in fast.parameters()) == count
    assert len(fast.state_dict()) == len(fast.module.state_dict())
    assert not fast.train().training
    assert fast.to("cpu") is fast
    with pytest.raises(ValueError, match=r"optimised for cpu in torch\.float32"):
        fast.double()
    twin = copy.deepcopy(fast)
    assert torch.equal(twin(torch.ones(2, 3, 32, 32)), fast(torch.ones(2, 3, 32, 32)))


def test_weights_are_not_loaded_beside_its_plain_form_and_pickles_name_the_way_to_save(quick, tmp_path):
    fast = optimised()
    with pytest.raises(ValueError, match=r"plain form and give that to lf\.optimize"):
        fast.load_state_dict(fast.state_dict())
    with pytest.raises(TypeError, match=r"lf\.save"):
        torch.save(fast, tmp_path / "fast.pt")


def test_it_is_measured_as_the_model_that_it_was_made_from(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    model = lf.create("vit", depth=1, **SMALL)
    how = {"device": "cpu", "batches": [2], "modes": ["eager", "compiled"], "repeats": 2}
    rows = lf.measure.compare({"plain": model, "fast": optimised(lf.fuse(model))}, **how).rows
    assert {(row.model, row.mode) for row in rows} == {(m, f) for m in ("plain", "fast") for f in how["modes"]}


def test_a_call_waits_for_the_last_one_on_another_stream_unless_it_is_recorded(quick, monkeypatch):
    fast, streams = optimised(), [Mock(), Mock(), Mock()]
    calls, recorded = [streams[0], streams[1], streams[2], streams[1]], [False, False, True, False]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: calls[-len(recorded) - 1])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recorded.pop(0))
    for _ in calls:
        fast._wait_for_last_call()
    assert streams[1].wait_stream.call_args_list == [call(streams[0])]
    assert not streams[0].wait_stream.called
    assert not streams[2].wait_stream.called


def test_optimising_again_starts_from_the_plain_form(quick):
    fast = optimised()
    assert optimised(fast, batch=3).choice.steps == fast.choice.steps


def test_an_optimised_model_really_compiles_and_outlives_a_reset_of_the_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    layer = Compiled(torch.nn.Linear(4, 4).eval())
    x = torch.randn(2, 4)
    truth = layer.module(x)
    torch.testing.assert_close(layer(x), truth)
    kept = layer._kept[-1]
    torch._dynamo.reset()
    assert layer._kept[-1] is kept
    torch.testing.assert_close(layer(x), truth)


def test_a_cache_that_is_no_json_object_is_started_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    memory.memory_path().write_text("[1, 2]")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.remember("a", {"b": 1})
    assert memory.recall("a") == {"b": 1}
