"""optimize returns an equivalent, verifies it, and remembers what it chose."""

import pytest
import torch
from helpers import randomise

import leanformer as lf
from leanformer.methods.evit.method import fast as reduce
from leanformer.methods.sit.slimming import slimming_maps
from leanformer.speed import search
from leanformer.speed.rewrite import REWRITES

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "num_classes": 5}
SWIN = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2), "window_size": 4}


REDUCING = ("attention with class row", "tokens ranked by counting", "tokens reorganised in one pass")


@pytest.fixture(autouse=True)
def kernels_whatever_the_shape(monkeypatch):
    """The small shapes of these tests would take the plain form."""
    monkeypatch.setattr(reduce, "one_pass_pays", lambda batch: True)
    monkeypatch.setattr(reduce, "row_pays", lambda batch, tokens: True)


def evit():
    return randomise(lf.apply(lf.create("vit", depth=4, **SMALL), lf.EViT(keep_rate=0.5))).eval()


def pooled():
    dims = {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48), "num_classes": 5, "img_size": 64}
    return randomise(lf.create("poolformer_s12", **dims), scale=0.2).eval()


def slimmed(**options):
    model = randomise(lf.apply(lf.create("vit", depth=4, **SMALL), lf.SiT(at=(1, 2), **options)))
    return lf.fuse(model.eval())


def lean_vit():
    model = lf.apply(lf.create("vit", depth=4, **SMALL), lf.RePa(), lf.EViT())
    return lf.fuse(randomise(model).eval())


def mixer_free(**more):
    teacher = lf.create(
        "poolformer_s12", depths=(1, 1, 2, 1), dims=(16, 24, 32, 48), num_classes=5, img_size=64, **more
    )
    return lf.fuse(randomise(lf.apply(teacher, lf.RIFormer()), scale=0.2).eval())


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: lf.create("vit", depth=2, **SMALL).eval(), {"patches by product", "activation in product"}),
        (lean_vit, {"patches by product", "RePa by products", *REDUCING}),
        (evit, {"patches by product", "activation in product", *REDUCING}),
        (slimmed, {"patches by product", "activation in product", "tokens slimmed in one pass"}),
        (
            lambda: slimmed(start="random"),
            {"patches by product", "activation in product", "tokens slimmed in one pass"},
        ),
        (mixer_free, {"mixer-free stages in one pass", "first convolution by product"}),
        (
            lambda: lf.fuse(randomise(lf.create("lvvit_plus_tiny", depth=2, embed_dim=32, img_size=32, num_heads=2))),
            {"first convolution by product", "activation in product"},
        ),
        (pooled, {"pooling with its norm in one pass", "first convolution by product"}),
        (lambda: lf.create("swin", num_classes=5, **SWIN).eval(), {"patches by product", "activation in product"}),
    ],
)  # fmt: skip
def test_every_rewrite_gives_the_same_answers_and_leaves_the_model_alone(build, expected):
    model = build()
    images = torch.randn(2, *lf.core.input_of(model)["input_size"])
    before, taken = model(images), set()
    for name, rewrite in REWRITES.items():
        new = rewrite(model)
        if new is not None:
            taken.add(name)
            torch.testing.assert_close(new(images), before, atol=1e-4, rtol=1e-4)
    assert taken - {"channels last"} == expected
    assert torch.equal(model(images), before)


def test_a_model_that_only_looks_mixer_free_is_not_rewritten():
    assert REWRITES["mixer-free stages in one pass"](mixer_free(act="relu")) is None
    pooled = lf.create("poolformer_s12", depths=(1, 1, 1, 1), dims=(16, 16, 16, 16))
    assert REWRITES["mixer-free stages in one pass"](pooled) is None


def test_slimmings_that_are_not_fused_or_share_tokens_out_are_not_rewritten():
    rewrite = REWRITES["tokens slimmed in one pass"]
    assert rewrite(lf.apply(lf.create("vit", depth=4, **SMALL), lf.SiT(at=(1, 2)))) is None
    assert rewrite(slimmed(axis="outputs")) is None


def test_slimming_in_one_pass_follows_the_size_of_the_images_and_still_tells_its_weights():
    model = lf.fuse(randomise(lf.apply(lf.create("vit", depth=4, dynamic_img_size=True, **SMALL), lf.SiT(at=(1, 2)))))
    new = REWRITES["tokens slimmed in one pass"](model.eval())
    for size in ((32, 32), (48, 40)):
        images = torch.randn(2, 3, *size)
        torch.testing.assert_close(new(images), model(images), atol=1e-4, rtol=1e-4)
        for found, truth in zip(slimming_maps(new, images), slimming_maps(model, images), strict=True):
            torch.testing.assert_close(found, truth, atol=1e-5, rtol=1e-4)


def test_optimize_on_the_cpu_answers_like_the_model_at_any_batch_and_remembers(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    model = lean_vit()
    fast = lf.optimize(model, device="cpu", batch=2, dtype="float32", repeats=2)
    for batch in (2, 3):
        images = torch.randn(batch, 3, 32, 32)
        torch.testing.assert_close(fast(images), model(images), atol=1e-4, rtol=1e-4)
        assert torch.equal(fast.on(images)(), fast(images))
    assert "torch.compile" in str(fast.choice)
    again = lf.optimize(model, device="cpu", batch=2, dtype="float32")
    assert again.choice.remembered
    assert again.choice.steps == fast.choice.steps
    assert not lf.optimize(model, device="cpu", batch=3, dtype="float32", repeats=2).choice.remembered


def test_a_rewrite_that_changes_the_answers_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)

    def shallow(model):
        new = lf.core.share(model)
        new.blocks = new.blocks[:1]
        return new

    monkeypatch.setattr(search, "REWRITES", {"drop blocks": shallow})
    fast = lf.optimize(lean_vit(), device="cpu", batch=2, dtype="float32", repeats=2)
    assert fast.choice.steps == []
    assert not fast.choice.attempts[-1].kept


def test_unknown_dtypes_are_refused():
    with pytest.raises(ValueError, match="unknown dtype 'fp7'"):
        lf.optimize(lean_vit(), device="cpu", dtype="fp7")


def test_steps_that_no_measurement_has_shown_to_pay_are_left_to_the_search(monkeypatch):
    monkeypatch.setattr(search, "WHEN_MEASURED", frozenset({"pooling with its norm in one pass"}))
    assert "pooling with its norm in one pass" not in search._applicable(pooled())
    monkeypatch.undo()
    assert "pooling with its norm in one pass" in search._applicable(pooled())


@pytest.mark.parametrize("build", [lean_vit, evit, slimmed, mixer_free, pooled])
def test_the_rewritten_model_compiles_without_graph_breaks(build):
    model = build()
    for rewrite in REWRITES.values():
        model = rewrite(model) or model
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    images = torch.randn(2, *lf.core.input_of(model)["input_size"])
    with torch.inference_mode():
        torch.testing.assert_close(compiled(images), model(images), atol=1e-4, rtol=1e-4)
