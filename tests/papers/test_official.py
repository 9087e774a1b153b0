"""Models that were made and trained here go out in the authors' form, where there is one."""

from typing import Any

import pytest
import torch
from helpers import randomise

import leanformer as lf
from leanformer.papers.repa.keys import MIXER, POOLFORMER, SWIN, VIT

PATCHES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_classes": 5}
REPA: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {  # backbone, arguments, official class, config
    "ViT": (
        "repavit_small", {**PATCHES, "depth": 2, "num_heads": 2},
        VIT, {**PATCHES, "depth": 2, "num_heads": 2, "pre_norm": True},
    ),
    "Swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 56, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5},
        SWIN, {"img_size": 56, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5},
    ),
    "PoolFormer": (
        "poolformer_s12", {"img_size": 64, "depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16), "num_classes": 5},
        POOLFORMER, {"img_size": 64, "layers": (1, 1, 1, 1), "embed_dims": (8, 8, 16, 16), "num_classes": 5},
    ),
    "MLP-Mixer": ("repamixer_s16", {**PATCHES, "num_blocks": 2}, MIXER, {**PATCHES, "num_blocks": 2}),
}  # fmt: skip
IDLE = {"feature_norm": "BatchNorm", "channel_idle": True, "idle_ratio": 0.75}


@pytest.mark.parametrize("fused", [False, True], ids=["trained", "fused"])
@pytest.mark.parametrize("family", REPA)
def test_a_repaformer_made_here_goes_out_in_the_official_form_of_its_backbone(family: str, fused: bool) -> None:
    name, arguments, official, config = REPA[family]
    model = randomise(lf.apply(lf.create(name, **arguments), lf.RePa(idle_ratio=0.75))).eval()
    model = lf.fuse(model) if fused else model
    again = lf.from_official(official, {**config, **IDLE}, lf.to_official(model))
    images = torch.randn(2, 3, config["img_size"], config["img_size"])
    with torch.no_grad():
        torch.testing.assert_close(again(images), model(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments", "method"),
    [
        ("repavit_small", REPA["ViT"][1], lf.RePa(blocks=(1,))),
        ("repavit_small", REPA["ViT"][1], lf.RePa(ramp_epochs=2.0)),
        ("repamixer_s16", REPA["MLP-Mixer"][1], lf.RePa(idle_ratio=0.5)),
        ("vit", REPA["ViT"][1], lf.RePa()),
        ("poolformerv2_s12", REPA["PoolFormer"][1], lf.RePa()),
        ("poolformer_s12", REPA["PoolFormer"][1], lf.RePa(idle_ratio=0.7)),
        ("repavit_small", REPA["ViT"][1], lf.RePa(idle_ratio=0.7, rounding="floor")),
        ("poolformer_s12", REPA["PoolFormer"][1], lf.RePa(schedule="linear")),
    ],
    ids=[
        "one block", "in a ramp", "another ratio", "another ViT", "another PoolFormer", "a PoolFormer rounded up",
        "a ViT rounded down", "a PoolFormer with a schedule",
    ],
)  # fmt: skip
def test_a_repaformer_that_the_authors_have_not_is_refused(name: str, arguments: dict, method: lf.Method) -> None:
    with pytest.raises(
        ValueError, match=rf"^({name} with repa has no official form|a MetaFormer with repa has no form)"
    ):
        lf.to_official(lf.apply(lf.create(name, **arguments), method))


@pytest.mark.parametrize(
    ("idle_ratio", "rounding"), [(0.7, "floor"), (0.75, "ceil")], ids=["as officially", "nothing to round"]
)
def test_a_repa_poolformer_goes_out_where_it_has_as_many_active_channels(idle_ratio: float, rounding: Any) -> None:
    name, arguments, official, config = REPA["PoolFormer"]
    method = lf.RePa(idle_ratio=idle_ratio, rounding=rounding)
    model = randomise(lf.apply(lf.create(name, **arguments), method)).eval()
    again = lf.from_official(official, {**config, **IDLE, "idle_ratio": idle_ratio}, lf.to_official(model))
    images = torch.randn(2, 3, config["img_size"], config["img_size"])
    with torch.no_grad():
        torch.testing.assert_close(again(images), model(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "fused"),
    [(lf.RIFormer(blocks=(0, 2)), True), (lf.RIFormer(blocks=(0, 2)), False), (lf.RIFormer(identity=True), False)],
    ids=["some blocks, fused", "some blocks", "no affine"],
)
def test_a_riformer_that_the_authors_have_not_is_refused(method: lf.RIFormer, fused: bool) -> None:
    model = randomise(lf.apply(lf.create("poolformer_s12", **REPA["PoolFormer"][1]), method)).eval()
    with pytest.raises(ValueError, match=r"^the official RIFormer .* an affine for every token mixer, or fused"):
        lf.to_official(lf.fuse(model) if fused else model)


@pytest.mark.parametrize("method", [lf.RePa(), lf.TokenMixer(), lf.SLAB()], ids=["repa", "token_mixer", "slab"])
def test_an_lvvit_with_a_method_is_not_given_out_as_an_official_lvvit(method: lf.Method) -> None:
    model = lf.apply(lf.create("lvvit_s", **PATCHES, depth=2, num_heads=2), method)
    with pytest.raises(ValueError, match=f"^an LV-ViT with {method.name} has no official form"):
        lf.to_official(model)


@pytest.mark.parametrize("nest", ["model", "state_dict"])
@pytest.mark.parametrize("family", REPA)
def test_the_whole_content_of_a_released_file_is_taken(family: str, nest: str) -> None:
    name, arguments, official, config = REPA[family]
    model = randomise(lf.apply(lf.create(name, **arguments), lf.RePa(idle_ratio=0.75))).eval()
    content: Any = {nest: lf.to_official(model), "epoch": 299, "optimizer": {"state": {}}}
    again = lf.from_official(official, {**config, **IDLE}, content)
    assert all(torch.equal(found, again.state_dict()[key]) for key, found in model.state_dict().items())
    with pytest.raises(ValueError, match="holds no state dict"):
        lf.from_official(official, {**config, **IDLE}, {"weights": content})


def test_an_optimised_model_goes_out_as_its_plain_form(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    model = lf.fuse(randomise(lf.create("poolformer_s12", **REPA["PoolFormer"][1])).eval())
    found, expected = lf.to_official(lf.optimize(model, device="cpu", batch=2, search=False)), lf.to_official(model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
