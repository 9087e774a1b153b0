"""Our RePaFormers answer what the official ones answered, trained and reparameterised, and their weights go back."""

from typing import Any

import pytest
import torch
from helpers import parity_files

import leanformer as lf
from leanformer.methods.repa.idle import FusedFFN, FusedPair
from leanformer.papers.repa.keys import MIXER, POOLFORMER, SWIN, VIT

FILES = parity_files("repaformer_*.pt")
VIT_CONFIG: dict[str, Any] = {
    "img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "mlp_ratio": 4, "pre_norm": True,
    "num_classes": 5, "channel_idle": True,
}  # fmt: skip


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def assert_same_state(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[key].to(theirs[key].dtype), theirs[key]) for key in theirs)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_trained_form_answers_as_the_official_one_and_goes_back(path):
    answer = torch.load(path, weights_only=True)
    model = lf.from_official(answer["official"], answer["config"], answer["state_dict"])
    with torch.no_grad():
        assert (model(answer["input"]) - answer["output"]).abs().max() < 1e-4
    assert_same_state(lf.to_official(model), answer["state_dict"])
    assert parameters(model) == answer["params_train"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_fused_it_answers_the_same_at_the_official_size_or_below(path):
    answer = torch.load(path, weights_only=True)
    model = lf.from_official(answer["official"], answer["config"], answer["state_dict"])
    if not lf.card_of(model).methods:
        pytest.skip("no channel of this model idles")
    fused = lf.fuse(model)
    with torch.no_grad():  # not reparam_output: official fusing of PoolFormer loses a bias
        assert (fused(answer["input"]) - answer["output"]).abs().max() < 1e-4
    if answer.get("params_reparam"):
        grown = any(isinstance(block.ffn, FusedPair) for block in lf.blocks_of(fused).values())
        assert parameters(fused) < answer["params_reparam"] if grown else parameters(fused) == answer["params_reparam"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_reparameterised_form_is_a_fused_model_and_goes_back(path):
    answer = torch.load(path, weights_only=True)
    if not answer.get("reparam_state_dict"):
        pytest.skip("the official code cannot reparameterise this model")
    model = lf.from_official(answer["official"], answer["config"], answer["reparam_state_dict"])
    assert lf.card_of(model).fused
    with torch.no_grad():
        assert (model(answer["input"]) - answer["reparam_output"]).abs().max() < 1e-4
    assert_same_state(lf.to_official(model), answer["reparam_state_dict"])


def vit_state(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Weights of an official RePaViT under its own keys."""
    model = lf.create("repavit", **{k: v for k, v in config.items() if k not in ("channel_idle", "feature_norm")})
    state = {}
    for key, value in model.state_dict().items():
        key = key.replace("mix.norm", "attn.norm").replace("mix.fn", "attn").replace("ffn.fn", "mlp")
        state[key.replace("ffn.norm", "mlp.norm")] = value
    return state


def test_eps_and_norm_of_the_official_vit_are_in_their_places():
    model = lf.from_official(VIT, {**VIT_CONFIG, "feature_norm": "LayerNorm"}, vit_state(VIT_CONFIG))
    assert model.norm_pre.eps == model.norm.eps == 1e-6
    assert model.blocks[0].mix.norm.eps == model.blocks[0].ffn.norm.eps == 1e-5
    assert model.patch_embed.proj.bias is None


def test_the_layer_norm_form_goes_both_ways_and_fuses_exactly():
    state = vit_state(VIT_CONFIG)
    model = lf.from_official(VIT, {**VIT_CONFIG, "feature_norm": "LayerNorm"}, state)
    assert_same_state(lf.to_official(model), state)
    fused = lf.fuse(model)
    assert isinstance(fused.blocks[0].ffn, FusedFFN)
    with pytest.raises(ValueError, match="keeps its norm"):
        lf.to_official(fused)


def test_without_idle_channels_it_is_a_plain_vit():
    config = {**VIT_CONFIG, "channel_idle": False, "feature_norm": "BatchNorm"}
    state = vit_state(VIT_CONFIG)
    model = lf.from_official(VIT, config, state)
    assert not lf.card_of(model).methods
    assert_same_state(lf.to_official(model), state)


@pytest.mark.parametrize("options", [{"heuristic": "linear"}, {"idle_ratio": 0.05}, {"idle_ratio": 1.0}])
def test_every_fused_form_survives_the_way_out_and_back(options):
    config = {**VIT_CONFIG, "feature_norm": "BatchNorm", "idle_ratio": 0.75, **options}
    arguments = {k: v for k, v in VIT_CONFIG.items() if k != "channel_idle"}
    ratio, schedule = config["idle_ratio"], "linear" if "heuristic" in options else "static"
    model = lf.apply(lf.create("repavit", **arguments), lf.RePa(idle_ratio=ratio, schedule=schedule))
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm1d)):
        norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
    fused = lf.fuse(model.eval())
    fused.card = fused.card.replace(official={"official": VIT, "config": config})
    state = lf.to_official(fused)
    again = lf.from_official(VIT, config, state)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert (again(images) - fused(images)).abs().max() < 1e-5
    last = {key.rpartition("mlp.")[2] for key in state if key.startswith("blocks.2.mlp")}
    assert last == (
        {"fc1.weight", "fc1.bias"} if ratio == 1 else {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight"}
    )


def test_a_path_that_no_idle_channel_explains_is_refused():
    config = {**VIT_CONFIG, "feature_norm": "BatchNorm", "idle_ratio": 0.0}
    arguments = {k: v for k, v in VIT_CONFIG.items() if k != "channel_idle"}
    model = lf.apply(lf.create("repavit", **arguments), lf.RePa(idle_ratio=0.0))
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm1d)):
        norm.running_mean.normal_()
    fused = lf.fuse(model.eval())
    fused.card = fused.card.replace(official={"official": VIT, "config": config})
    state = lf.to_official(fused)
    assert torch.equal(state["blocks.0.mlp.fc1.weight"], torch.eye(32))
    state["blocks.0.mlp.fc1.weight"] = torch.randn(32, 32)
    with pytest.raises(ValueError, match="higher rank"):
        lf.from_official(VIT, config, state)


def test_options_without_a_counterpart_are_refused_by_name():
    small = {VIT: {"depth": 1, "embed_dim": 12}, SWIN: {"depths": (1,), "embed_dim": 12, "num_heads": (1,)}}
    for official, option in ((VIT, "po_shortcut"), (SWIN, "ape"), (MIXER, "gating")):
        config = {
            "feature_norm": "BatchNorm",
            "channel_idle": True,
            option: True,
            **small.get(official, {"num_blocks": 1}),
        }
        with pytest.raises(ValueError, match=option):
            lf.from_official(official, config, {})
    with pytest.raises(ValueError, match="EmpiricalSTD"):
        lf.from_official(POOLFORMER, {"feature_norm": "EmpiricalSTD"}, {})
