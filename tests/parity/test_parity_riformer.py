"""The official RIFormer's answers, in training and in deploy form, and its checkpoints' keys both ways."""

import pytest
import torch
from helpers import parity_files, randomise

import leanformer as lf
from leanformer.methods.riformer.affine import NormResidual
from leanformer.papers.official import RELEASED

FILES = parity_files("riformer_*.pt")
RELEASES = [f"riformer_{size}{pixels}" for size in ("s12", "s24", "s36", "m36", "m48") for pixels in ("", "_384")]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def answers(request, shared):
    return torch.load(request.param, weights_only=True)


def features_of(model, images):
    """The official backbone's outputs: the maps it has norms for."""
    stages = [*model.config.out_norms, len(model.stages) - 1]
    return model.forward_intermediates(images, indices=stages, norm=True, intermediates_only=True)


@torch.no_grad()
@pytest.mark.parametrize("form", ["state_dict", "deploy_state_dict"])
def test_answers_and_features_are_the_official_ones_in_both_forms(answers, form):
    model = lf.from_official(answers["official"], answers["config"], answers[form])
    output = answers["output" if form == "state_dict" else "reparam_output"]
    torch.testing.assert_close(model(answers["input"]), output, rtol=0, atol=1e-4)
    ours, theirs = features_of(model, answers["input"]), answers["features"]
    assert len(ours) == len(theirs)
    for map_, official in zip(ours, theirs):
        torch.testing.assert_close(map_, official, rtol=0, atol=1e-4)


@torch.no_grad()
def test_fused_training_form_answers_as_the_official_deploy_form(answers):
    fast = lf.fuse(lf.from_official(answers["official"], answers["config"], answers["state_dict"]), verify=False)
    torch.testing.assert_close(fast(answers["input"]), answers["reparam_output"], rtol=0, atol=1e-4)
    state, official = lf.to_official(fast), answers["deploy_state_dict"]
    assert {key: value.shape for key, value in state.items()} == {key: value.shape for key, value in official.items()}
    again = lf.from_official(answers["official"], answers["config"], state)
    torch.testing.assert_close(again(answers["input"]), fast(answers["input"]))
    for key, value in official.items():  # norm_reparam times LayerScale is what both compute
        scale = key.rpartition(".norm_reparam.")[0] + ".layer_scale_1"
        if ".norm_reparam." in key:
            torch.testing.assert_close(state[key] * state[scale], value * official[scale], rtol=1e-4, atol=1e-5)
        elif not key.endswith("layer_scale_1"):
            torch.testing.assert_close(state[key], value)


def test_training_form_goes_back_bit_by_bit(answers):
    model = lf.from_official(answers["official"], answers["config"], answers["state_dict"])
    state = lf.to_official(model)
    assert set(state) == set(answers["state_dict"])
    assert all(torch.equal(state[key], value) for key, value in answers["state_dict"].items())


def test_parameter_counts_are_the_official_ones(answers):
    model = lf.from_official(answers["official"], answers["config"], answers["state_dict"])
    count = sum(p.numel() for p in model.parameters())
    blocks = lf.blocks_of(model).values()
    assert count == answers["params_train"]
    fused = sum(p.numel() for p in lf.fuse(model, verify=False).parameters())
    assert fused == answers["params_deploy"] - sum(block.dim for block in blocks)  # LayerScale is gone too


def test_fused_model_holds_no_token_mixer(answers):
    fast = lf.fuse(lf.from_official(answers["official"], answers["config"], answers["state_dict"]), verify=False)
    assert all(type(block.mix) is NormResidual for block in lf.blocks_of(fast).values())
    assert {type(m).__name__ for block in lf.blocks_of(fast).values() for m in block.mix.modules()} == {
        "NormResidual", "GroupNorm1", "Identity",
    }  # fmt: skip


def test_deep_outputs_need_the_last_stage():
    arch = {"layers": [1, 1], "embed_dims": [8, 16], "mlp_ratios": [2, 2], "layer_scale_init_value": 1e-5}
    with pytest.raises(ValueError, match="out_indices"):
        lf.from_official("mmpretrain RIFormer", {"arch": arch, "out_indices": (0, 1)}, {})
    with pytest.raises(ValueError, match="frozen_stages"):
        lf.from_official("mmpretrain RIFormer", {"arch": arch, "frozen_stages": 2}, {})


@pytest.mark.parametrize("multi", [False, True])
def test_several_outputs_have_norms_of_their_own(multi):
    arch = {"layers": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32], "mlp_ratios": [2, 3, 4, 4]}
    config = {"arch": arch | {"layer_scale_init_value": 0.1}, "num_classes": 5}
    config |= {"out_indices": (0, 2, 4, 6)} if multi else {}
    names = [f"backbone.norm{i}.{part}" for i in ((0, 2, 4, 6) if multi else (6,)) for part in ("weight", "bias")]
    arguments = {"depths": (1,) * 4, "dims": (8, 16, 24, 32), "mlp_ratios": (2, 3, 4, 4), "num_classes": 5}
    source = lf.create("metaformer", out_norms=(0, 1, 2) if multi else (), **arguments)
    source = randomise(lf.apply(source, lf.RIFormer())).eval()
    state = lf.to_official(source)
    assert {key for key in state if key.startswith("backbone.norm")} == set(names)
    model, images = lf.from_official("mmpretrain RIFormer", config, state), torch.randn(2, 3, 64, 64)
    assert len(features_of(model, images)) == (4 if multi else 1)
    for ours, theirs in zip(features_of(model, images), features_of(source, images), strict=True):
        assert torch.equal(ours, theirs)


@torch.no_grad()
def test_the_backbone_alone_loads_without_its_prefix(answers):
    whole = lf.from_official(answers["official"], answers["config"], answers["state_dict"])
    state = {k.removeprefix("backbone."): v for k, v in answers["state_dict"].items() if k.startswith("backbone.")}
    alone = lf.from_official(answers["official"], answers["config"], state)
    for ours, theirs in zip(features_of(alone, answers["input"]), features_of(whole, answers["input"]), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", RELEASES)
def test_released_models_are_known_by_name_in_both_forms(name):
    assert name in RELEASED
    with torch.device("meta"):
        model = lf.create(name)
        pixels = 384 if name.endswith("384") else 224
        assert lf.core.input_of(model)["input_size"] == (3, pixels, pixels)
        assert [m.name for m in lf.card_of(model).methods] == ["riformer"]
        keys = set(lf.to_official(model))
        deployed = set(lf.to_official(lf.core.fold(model)))
    depth = len(lf.blocks_of(model))
    assert sum(key.endswith("token_mixer.affine.weight") for key in keys) == depth
    assert sum(key.endswith("norm_reparam.weight") for key in deployed) == depth
    changed = ("token_mixer.affine", ".norm1.", ".norm_reparam.")
    same = {key for key in keys if not any(part in key for part in changed)}
    assert same == {key for key in deployed if not any(part in key for part in changed)}


def test_created_model_saves_loads_and_fuses(tmp_path):
    model = randomise(lf.create("riformer_s12", dims=(8, 16, 24, 32), num_classes=5)).eval()
    images = torch.randn(1, 3, 64, 64)
    for form in (model, lf.fuse(model, verify=False)):
        loaded = lf.load(lf.save(form, tmp_path / "model.safetensors"))
        assert torch.equal(loaded(images), form(images))
        assert lf.card_of(loaded).methods == (lf.RIFormer(),)


def test_a_model_that_keeps_a_token_mixer_has_no_official_form():
    model = lf.apply(lf.create("poolformer_s12", dims=(8, 16, 24, 32)), lf.RIFormer(blocks=(0, 1)))
    with pytest.raises(ValueError, match="without any token mixer"):
        lf.to_official(model)
