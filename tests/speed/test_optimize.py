"""optimize returns an equivalent, verifies it, and remembers what it chose."""

import pytest
import torch
from helpers import randomise

import leanformer as lf
from leanformer.core import AnyRewrite, LocalRewrite, Rewrite
from leanformer.core.reduce import decisions
from leanformer.methods.evit import fast as reduce
from leanformer.speed import alone, search
from leanformer.speed.compiled import Compiled
from leanformer.speed.rewrite import rewrites

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2, "num_classes": 5}
SWIN = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 2), "window_size": 4}


STEPS = rewrites()
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


def depthwise():
    return lf.create("caformer_s18", depths=(1, 1, 1, 1), dims=(16, 16, 32, 32), num_classes=5, img_size=64).eval()


def slimmed(**options):
    model = randomise(lf.apply(lf.create("vit", depth=4, **SMALL), lf.SiT(at=(1, 2), **options)))
    return lf.fuse(model.eval())


def lean_vit():
    model = lf.apply(lf.create("vit", depth=4, **SMALL), lf.RePa(), lf.EViT())
    return lf.fuse(randomise(model).eval())


MERGING = ("proportional attention in one kernel", "merged tokens beside their sizes", "pairs found in one kernel")


def merged(*methods):
    model = lf.apply(lf.create("vit", depth=4, **SMALL), lf.ToMe(merged=3, at=(1, 2)), *methods)
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
        (merged, {"patches by product", "activation in product", *MERGING}),
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
    for name, rewrite in STEPS.items():
        new = rewrite.apply(model)
        if new is not None:
            taken.add(name)
            torch.testing.assert_close(new(images), before, atol=1e-4, rtol=1e-4)
    assert taken - {"channels last"} == expected
    assert torch.equal(model(images), before)


def test_a_model_that_only_looks_mixer_free_is_not_rewritten():
    assert STEPS["mixer-free stages in one pass"].apply(mixer_free(act="relu")) is None
    pooled = lf.create("poolformer_s12", depths=(1, 1, 1, 1), dims=(16, 16, 16, 16))
    assert STEPS["mixer-free stages in one pass"].apply(pooled) is None


def test_slimmings_that_are_not_fused_or_share_tokens_out_are_not_rewritten():
    rewrite = STEPS["tokens slimmed in one pass"].apply
    assert rewrite(lf.apply(lf.create("vit", depth=4, **SMALL), lf.SiT(at=(1, 2)))) is None
    assert rewrite(slimmed(axis="outputs")) is None


def test_slimming_in_one_pass_follows_the_size_of_the_images_and_still_tells_its_weights():
    model = lf.fuse(randomise(lf.apply(lf.create("vit", depth=4, dynamic_img_size=True, **SMALL), lf.SiT(at=(1, 2)))))
    new = STEPS["tokens slimmed in one pass"].apply(model.eval())
    for size in ((32, 32), (48, 40)):
        images = torch.randn(2, 3, *size)
        torch.testing.assert_close(new(images), model(images), atol=1e-4, rtol=1e-4)
        tokens = torch.randn(2, 1 + size[0] * size[1] // 64, 32)
        found, truth = new.blocks[1].pre.weights(tokens), model.blocks[1].pre.weights(tokens)
        torch.testing.assert_close(found, truth, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("build", [merged, lambda: merged(lf.RePa())])
def test_merging_without_packed_sizes_is_the_same_in_float64_and_other_steps_work_inside(build):
    model = build().double()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    new = model
    for name in (*MERGING, "tokens merged in one pass"):
        new = STEPS[name].apply(new)
        torch.testing.assert_close(new(images), model(images), atol=1e-12, rtol=1e-12)
    assert [type(d).__name__ for d in decisions(new)] == ["MatchInOneKernel"] * 3
    assert STEPS["tokens merged in one pass"].apply(model) is None  # only where sizes go beside the tokens
    inside = STEPS["RePa by products" if len(lf.card_of(model).methods) > 1 else "activation in product"]
    assert len(inside.places(new)) == 4
    torch.testing.assert_close(inside.apply(new)(images), model(images), atol=1e-3, rtol=1e-3)  # GELU's other form
    assert STEPS[MERGING[1]].apply(lf.create("vit", depth=2, **SMALL)) is None


def test_merging_in_one_pass_finds_pairs_with_the_digits_of_float32_under_autocast():
    model = merged()
    images = torch.randn(8, 3, 32, 32)
    steps = (STEPS["merged tokens beside their sizes"], STEPS["tokens merged in one pass"])
    new = steps[1].apply(steps[0].apply(model))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(new(images), model(images))


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Nothing is compiled, and what is remembered stays in this test."""
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)


@pytest.mark.parametrize("way", ["modules", "model"])
def test_optimize_on_the_cpu_answers_like_the_model_at_any_batch_and_remembers(way, quick):
    model = lean_vit()
    fast = lf.optimize(model, device="cpu", batch=2, repeats=2, search=way)
    for batch in (2, 3):
        images = torch.randn(batch, 3, 32, 32)
        torch.testing.assert_close(fast(images), model(images), atol=1e-4, rtol=1e-4)
        assert torch.equal(fast.on(images)(), fast(images))
    assert ("torch.compile" if way == "model" else "patches by product") in str(fast.choice)
    again = lf.optimize(model, device="cpu", batch=2, search=way)
    assert again.choice.remembered
    assert (again.choice.steps, again.choice.places) == (fast.choice.steps, fast.choice.places)
    assert not lf.optimize(model, device="cpu", batch=3, repeats=2, search=way).choice.remembered


def shallow(model):
    new = lf.core.share(model)
    new.blocks = new.blocks[:1]
    return new


def wrong():
    return LocalRewrite("halved", lambda module: type(module) is torch.nn.GELU, lambda old: torch.nn.Hardtanh())


def test_a_rewrite_that_changes_the_answers_is_not_kept(quick, monkeypatch):
    monkeypatch.setattr(alone, "WORTH", 1e9)
    monkeypatch.setattr(search, "rewrites", lambda: {"drop blocks": Rewrite("drop blocks", shallow)})
    fast = lf.optimize(lean_vit(), device="cpu", batch=2, repeats=2, search="model")
    assert fast.choice.steps == []
    assert not fast.choice.attempts[-1].kept
    monkeypatch.setattr(search, "rewrites", lambda: {"halved": wrong()})
    fast = lf.optimize(evit(), device="cpu", batch=2, repeats=2)
    assert fast.choice.steps == []
    assert not fast.choice.timed[-1].kept


def test_what_cannot_be_asked_for_is_refused():
    with pytest.raises(ValueError, match="unknown dtype 'fp7'"):
        lf.optimize(lean_vit(), device="cpu", dtype="fp7")
    with pytest.raises(ValueError, match="search is 'all'"):
        lf.optimize(lean_vit(), device="cpu", search="all")


def test_a_step_is_taken_only_in_the_places_where_it_pays(quick, monkeypatch):
    """Blocks behind the reorganisation have fewer tokens: told that only those gain, optimize changes only those."""

    def compared(module, rewrite, alike, *_):
        gains = "GELU" in repr(module) and alike.arguments[0].shape[1] < 17
        return {"before": 1.0, "after": 0.5 if gains else 2.0, "same": True}

    monkeypatch.setattr(alone, "_compared", compared)
    fast = lf.optimize(evit(), device="cpu", batch=2)
    places = fast.choice.places["activation in product"]
    assert [step for step in fast.choice.steps if isinstance(STEPS[step], LocalRewrite)] == ["activation in product"]
    assert places
    assert "blocks.0.ffn.fn" not in places
    kinds = {path: type(fast.module.get_submodule(path)).__name__ for path in (*places, "blocks.0.ffn.fn")}
    assert kinds == {**dict.fromkeys(places, "GeluMlp"), "blocks.0.ffn.fn": "Mlp"}


def test_alike_modules_are_timed_once_and_remembered_for_other_models(quick, monkeypatch):
    seen = []
    compared = alone._compared
    monkeypatch.setattr(alone, "_compared", lambda *given: seen.append(given[1].name) or compared(*given))
    lf.optimize(lf.create("vit", depth=4, **SMALL).eval(), device="cpu", batch=2, repeats=1)
    assert sorted(seen) == ["activation in product", "patches by product"]
    lf.optimize(lf.create("vit", depth=3, **SMALL).eval(), device="cpu", batch=2, repeats=1)
    assert len(seen) == 2


def test_without_search_only_steps_measured_on_this_chip_are_taken(quick, monkeypatch):
    assert lf.optimize(pooled(), device="cpu", batch=2, search=False).choice.steps == []
    assert not STEPS["channels last"].pays("NVIDIA H200", depthwise())
    assert STEPS["channels last"].pays("NVIDIA H200", pooled())
    monkeypatch.setattr(AnyRewrite, "pays", lambda step, chip, model: step.pays_for(model))
    assert (
        "pooling with its norm in one pass" in lf.optimize(pooled(), device="cpu", batch=2, search=False).choice.steps
    )


def test_mlps_across_tokens_keep_their_activation_apart():
    mixer = lf.create("mixer", img_size=32, patch_size=8, embed_dim=32, num_blocks=2, num_classes=5)
    new = STEPS["activation in product"].apply(mixer)
    kinds = {path.rpartition(".")[2]: type(m).__name__ for path, m in new.named_modules() if "Mlp" in type(m).__name__}
    assert STEPS["activation in product"].places(mixer) == ["blocks.0.ffn.fn", "blocks.1.ffn.fn"], kinds


def test_every_model_of_a_process_is_compiled_however_many_there_are(monkeypatch):
    """A compiler that counts all modules as versions of one piece of code gives up after eight."""
    made = []
    monkeypatch.setattr(Compiled, "_by_inductor", lambda self, graph, inputs: made.append(graph) or graph.forward)
    for width in range(1, 13):
        Compiled(torch.nn.Linear(width, 1))(torch.zeros(1, width))
    assert len(made) == 12


@pytest.mark.parametrize("build", [lean_vit, evit, merged, slimmed, mixer_free, pooled])
def test_the_rewritten_model_compiles_without_graph_breaks(build):
    model = build()
    for rewrite in STEPS.values():
        model = rewrite.apply(model) or model
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    images = torch.randn(2, *lf.core.input_of(model)["input_size"])
    with torch.inference_mode():
        torch.testing.assert_close(compiled(images), model(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("repa_first", [True, False])
def test_mixer_free_stages_take_in_another_methods_ffn_and_answer_the_same(repa_first):
    teacher = lf.create("poolformer_s12", depths=(1, 1, 2, 1), dims=(16, 24, 32, 48), num_classes=5, img_size=64)
    both = lf.apply(teacher, lf.RIFormer(), lf.RePa(idle_ratio=0.75))
    model = lf.fuse(randomise(both, scale=0.2).eval())
    new = STEPS["RePa by products"].apply(model) if repa_first else model
    new = STEPS["mixer-free stages in one pass"].apply(new)
    assert sum(type(m).__name__ == "MixerFreePathBlock" for m in new.modules()) == 5
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(new(images), model(images), atol=1e-4, rtol=1e-4)
