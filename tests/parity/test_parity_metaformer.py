"""The official MetaFormer models' answers are ours, and their checkpoints go through us unchanged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import parity_files
from torch import Tensor, nn

import leanformer as lf
from leanformer.backbones.metaformer_config import OFFICIAL
from leanformer.core import input_of
from leanformer.papers.official import RELEASED

FILES = parity_files("metaformer_*.pt")
TOLERANCE = 1e-5
NAMES = [
    "poolformer_s12", "metaformer_id_s12", "metaformer_pppa_s12_224", "metaformer_ppaa_s12_224",
    "metaformer_pppf_s12_224", "metaformer_ppff_s12_224", "identityformer_s12", "randformer_s12", "poolformerv2_s12",
    "convformer_s18_384", "caformer_s18_in21k",
]  # fmt: skip
V1: dict[str, Any] = {
    "layers": [1, 1, 2, 1], "embed_dims": [32, 32, 64, 96], "mlp_ratios": [4, 4, 4, 4], "downsamples": [True] * 4,
    "num_classes": 7,
}  # fmt: skip
POOLFORMER = "sail-sg/poolformer models.poolformer.PoolFormer"
HYBRID = "sail-sg/poolformer models.metaformer.MetaFormer"


def official_state(seed: int = 0, **arguments: Any) -> dict[str, Tensor]:
    """A state dict with official keys, from a fresh model of ours with random weights."""
    torch.manual_seed(seed)
    official, config = arguments.pop("official"), arguments.pop("config")
    model = lf.create("metaformer", **arguments)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    model.card = lf.card_of(model).replace(official={"official": official, "config": config})  # type: ignore[assignment]
    return lf.to_official(model)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_our_answer_is_the_official_one(path: Path) -> None:
    file = torch.load(path, weights_only=True)
    model = lf.from_official(file["official"], file["config"], file["state_dict"])
    with torch.no_grad():
        output = model(file["input"])
        features = model.forward_head(model.forward_features(file["input"]), pre_logits=True)
    torch.testing.assert_close(output, file["output"], rtol=0, atol=TOLERANCE)
    if "pre_logits" in file:
        torch.testing.assert_close(features, file["pre_logits"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_official_weights_come_back_bit_equal_from_us_and_from_our_file(path: Path, tmp_path: Path) -> None:
    file = torch.load(path, weights_only=True)
    model = lf.from_official(file["official"], file["config"], file["state_dict"])
    loaded = lf.load(lf.save(model, tmp_path / "model.safetensors"))
    for back in (lf.to_official(model), lf.to_official(loaded)):
        assert back.keys() == file["state_dict"].keys()
        assert all(torch.equal(back[key], value) for key, value in file["state_dict"].items())


@pytest.mark.parametrize("name", NAMES)
def test_released_models_take_their_own_official_keys(name: str) -> None:
    with torch.device("meta"):
        model = lf.create(name)
        state = lf.to_official(model)
        again = lf.from_official(name, state_dict=state)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert input_of(again) == input_of(model)
    first = "patch_embed.proj.weight" if "poolformer " in RELEASED[name][0] else "downsample_layers.0.conv.weight"
    assert first in state


def test_every_official_model_is_released() -> None:
    assert set(OFFICIAL) <= set(RELEASED)


def test_the_dense_form_has_a_norm_for_each_stage_and_gives_their_maps() -> None:
    config = {**V1, "fork_feat": True, "family": "poolformer"}
    state = official_state(
        official=POOLFORMER, config=config, depths=V1["layers"], dims=V1["embed_dims"], fork_feat=True
    )
    assert {key for key in state if key.startswith("norm")} == {
        f"norm{i}.{w}" for i in (0, 2, 4, 6) for w in ("weight", "bias")
    }
    assert not any(key.startswith("head") for key in state)
    model = lf.from_official(POOLFORMER, config, state)
    plain = lf.create("metaformer", depths=V1["layers"], dims=V1["embed_dims"], num_classes=0)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "out_norms" not in k}, strict=False)
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        maps, raw = model(images), plain.forward_intermediates(images, intermediates_only=True)
    assert [tuple(m.shape) for m in maps] == [(1, 32, 16, 16), (1, 32, 8, 8), (1, 64, 4, 4), (1, 96, 2, 2)]
    for stage, (normed, bare) in enumerate(zip(maps, raw, strict=True)):
        weight, bias = state[f"norm{2 * stage}.weight"], state[f"norm{2 * stage}.bias"]
        assert torch.equal(normed, nn.functional.group_norm(bare, 1, weight, bias))


def test_a_stage_without_downsampling_shifts_the_official_numbers() -> None:
    config = {**V1, "downsamples": [False, True, True, True], "use_layer_scale": False, "pool_size": 5}
    ours = {"depths": V1["layers"], "dims": V1["embed_dims"], "num_classes": 7, "layer_scale_init_values": None}
    state = official_state(
        official=POOLFORMER, config=config, downsamples=[False, True, True, True], pool_size=5, **ours
    )
    assert "network.1.0.norm1.weight" in state
    assert "network.2.proj.weight" in state
    assert not any("layer_scale" in key for key in state)
    model = lf.from_official(POOLFORMER, config, state)
    assert model.config.pool_size == 5
    assert torch.equal(model.stages[2].downsample.conv.weight, state["network.2.proj.weight"])


def test_the_input_size_follows_from_the_weights() -> None:
    mixers = ["pooling", "pooling", "spatial_fc", "spatial_fc"]
    config = {**V1, "family": "metaformer_ppff", "norm": "GroupNorm"}
    state = official_state(
        official=HYBRID, config=config, depths=V1["layers"], dims=V1["embed_dims"], num_classes=7, token_mixers=mixers,
        img_size=96,
    )  # fmt: skip
    model = lf.from_official(HYBRID, config, state)
    assert input_of(model)["input_size"] == (3, 96, 96)
    assert model(torch.randn(1, 3, 96, 96)).shape == (1, 7)


@pytest.mark.parametrize(
    ("official", "config", "message"),
    [
        (POOLFORMER, {**V1, "window": 7}, "window"),
        (POOLFORMER, {**V1, "norm": "RMSNorm"}, "RMSNorm"),
        (POOLFORMER, {"embed_dims": [8]}, "layers"),
        (HYBRID, {**V1, "family": "metaformer_px"}, "metaformer_px"),
        ("sail-sg/metaformer metaformer_baselines.MetaFormer", {"depths": [1], "dims": [8]}, "family"),
    ],
)
def test_what_a_config_cannot_mean_is_refused_by_name(official: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lf.from_official(official, config, {"x": torch.zeros(1)})


def test_a_model_with_another_mixer_has_no_official_form() -> None:
    model = lf.create("poolformer_s12", depths=[1, 1], dims=[8, 16])
    with pytest.raises(ValueError, match="token_mixer"):
        lf.to_official(lf.apply(model, lf.TokenMixer(mixer="depthwise")))
