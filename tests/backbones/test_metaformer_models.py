"""Every MetaFormer of the papers: its figures, its parts, and what timm's models can do."""

import copy
from typing import Any

import pytest
import timm
import torch
from helpers import randomise
from timm.layers import DropPath, GroupNorm1
from timm.models import metaformer
from timm.models._manipulate import group_parameters
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import leanformer as lf
from leanformer.backbones.any_size import any_size
from leanformer.backbones.metaformer import NoSkip
from leanformer.backbones.metaformer_config import ABLATIONS, MODELS
from leanformer.backbones.registry import build
from leanformer.core import input_of
from leanformer.measure import count

TINY: dict[str, Any] = {"img_size": 64, "depths": [1, 1, 2, 1], "dims": [16, 24, 32, 64], "num_classes": 5}
ONE_EACH = ["poolformer_s12", "metaformer_ppaa_s12_224", "metaformer_ppff_s12_224", "identityformer_s12",
            "randformer_s12", "poolformerv2_s12", "convformer_s18", "caformer_s18"]  # fmt: skip

PARAMETERS = {
    "poolformer_s12": "11.915", "poolformer_s24": "21.389", "poolformer_s36": "30.863", "poolformer_m36": "56.173",
    "poolformer_m48": "73.473", "metaformer_id_s12": "11.915", "metaformer_pppa_s12_224": "14.038",
    "metaformer_ppaa_s12_224": "16.536", "metaformer_pppf_s12_224": "11.920", "metaformer_ppff_s12_224": "12.150",
    "identityformer_s12": "11.892", "identityformer_s24": "21.341", "identityformer_s36": "30.791",
    "identityformer_m36": "56.077", "identityformer_m48": "73.346", "randformer_s12": "12.127",
    "randformer_s24": "21.812", "randformer_s36": "31.497", "randformer_m36": "56.783", "randformer_m48": "74.287",
    "poolformerv2_s12": "11.892", "poolformerv2_s24": "21.341", "poolformerv2_s36": "30.791",
    "poolformerv2_m36": "56.077", "poolformerv2_m48": "73.346", "convformer_s18": "26.774",
    "convformer_s36": "40.012", "convformer_m36": "57.052", "convformer_b36": "99.883",
    "convformer_s18_in21k": "69.478", "caformer_s18": "26.342", "caformer_s36": "39.297", "caformer_m36": "56.205",
    "caformer_b36": "98.754", "caformer_s18_in21k": "69.045",
}  # fmt: skip
MACS = {
    "poolformer_s12": "1.812", "metaformer_ppaa_s12_224": "2.549", "metaformer_ppff_s12_224": "1.888",
    "randformer_s12": "1.888", "convformer_s18_384": "11.576", "caformer_s18": "4.107",
}  # fmt: skip


def tiny(name: str, **arguments: Any) -> Any:
    return randomise(lf.create(name, **{**TINY, **arguments})).eval()


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_official_model_s(name: str) -> None:
    with torch.device("meta"):
        model = build(name)
    assert f"{sum(p.numel() for p in model.parameters()) / 1e6:.3f}" == PARAMETERS[name]


@pytest.mark.parametrize("name", MACS)
def test_macs_are_the_official_model_s(name: str) -> None:
    with torch.device("meta"):
        model = lf.create(name)
    assert f"{count(model).macs / 1e9:.3f}" == MACS[name]


def test_random_matrices_are_frozen_and_everything_else_learns() -> None:
    with torch.device("meta"):
        model = lf.create("randformer_s12")
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert len(frozen) == 8
    assert all(name.endswith("random_matrix") for name in frozen)
    assert f"{sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6:.3f}" == "11.892"


def test_timm_finds_the_families_it_lacks_and_keeps_its_own_poolformer() -> None:
    assert timm.is_model("identityformer_s12")
    assert timm.is_model("randformer_m48")
    with torch.device("meta"):
        assert type(timm.create_model("poolformer_s12")).__module__ == "timm.models.metaformer"
        assert type(lf.create("poolformer_s12")).__module__ == "leanformer.backbones.metaformer"
        assert input_of(timm.create_model("randformer_s12"))["crop_pct"] == 1.0


def test_named_models_describe_their_input() -> None:
    with torch.device("meta"):
        assert input_of(lf.create("convformer_s18_384"))["input_size"] == (3, 384, 384)
        assert [input_of(lf.create(n))["crop_pct"] for n in ("poolformer_s12", "poolformer_m36")] == [0.9, 0.95]
        assert lf.create("caformer_s18_in21k").num_classes == 21841


def _timm_keys(state: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our adopted-block keys under timm's names and shapes."""
    pairs = (
        ("stem.post_norm", "stem.norm"), ("downsample.pre_norm", "downsample.norm"), ("mix.norm", "norm1"),
        ("mix.fn", "token_mixer"), ("mix.skip", "res_scale1"), ("mix.scale.gamma", "layer_scale1.scale"),
        ("ffn.norm", "norm2"), ("ffn.fn", "mlp"), ("ffn.skip", "res_scale2"), ("ffn.scale.gamma", "layer_scale2.scale"),
    )  # fmt: skip
    renamed = {}
    for key, value in state.items():
        for ours, theirs in pairs:
            key = key.replace(ours, theirs)
        if key.startswith("norm."):
            key = f"head.{key}"
        elif key.startswith("head."):
            key = f"head.fc.{key.removeprefix('head.')}"
        renamed[key] = value.reshape(reference[key].shape)
    return renamed


def _poolformer_of_timm() -> nn.Module:
    sizes = {key: TINY[key] for key in ("depths", "dims", "num_classes")}
    return metaformer.MetaFormer(
        **sizes, token_mixers=metaformer.Pooling, mlp_act=nn.GELU, mlp_bias=True, norm_layers=GroupNorm1,
        layer_scale_init_values=0.1, res_scale_init_values=None, use_mlp_head=False, downsample_norm=None,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["poolformer_s12", "caformer_s18"])
def test_timm_agrees_but_for_the_head_order_of_poolformer(name: str) -> None:
    """timm normalises PoolFormer's pooled features; the official model normalises the map before pooling."""
    pool = name == "poolformer_s12"
    ours, theirs = tiny(name), _poolformer_of_timm() if pool else build("timm_metaformer", **TINY)
    theirs.load_state_dict(_timm_keys(ours.state_dict(), theirs.state_dict()))
    images = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        features = ours.forward_intermediates(images, intermediates_only=True)[-1]
        torch.testing.assert_close(features, theirs.eval().forward_features(images), rtol=1e-4, atol=1e-4)
        assert torch.allclose(ours(images), theirs(images), rtol=1e-4, atol=1e-4) is not pool


@pytest.mark.parametrize("name", ONE_EACH)
def test_models_do_what_timm_s_models_do(name: str) -> None:
    model, images = tiny(name), torch.randn(2, 3, 64, 64)
    features = model.forward_features(images)
    assert features.shape == (2, 64, 2, 2)
    assert torch.equal(model.forward_head(features), model(images))
    last, maps = model.forward_intermediates(images, indices=[1, 3])
    assert torch.equal(last, features)
    assert [tuple(m.shape[1:]) for m in maps] == [(24, 8, 8), (64, 2, 2)]
    assert [info["reduction"] for info in model.feature_info] == [4, 8, 16, 32]
    assert set(group_parameters(model, model.group_matcher(), reverse=True)) == {n for n, _ in model.named_parameters()}
    assert model.no_weight_decay() == {n for n, _ in model.named_parameters() if "pos_embed" in n}
    model.reset_classifier(3)
    assert (model.num_classes, tuple(model(images).shape)) == (3, (2, 3))
    model.reset_classifier(0)
    assert torch.equal(model(images), model.forward_head(features, pre_logits=True))


@pytest.mark.parametrize("name", ["poolformer_s12", "caformer_s18"])
def test_checkpointed_gradients_are_the_plain_ones(name: str) -> None:
    model, images = tiny(name).train(), torch.randn(2, 3, 64, 64)
    plain = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
    model.set_grad_checkpointing()
    checkpointed = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))


@pytest.mark.parametrize("name", ["metaformer_ppaa_s12_224", "randformer_s12", "caformer_s18"])
def test_a_saved_model_comes_back_from_its_file_alone(name: str, tmp_path: Any) -> None:
    model, images = tiny(name), torch.randn(2, 3, 64, 64)
    loaded = lf.load(lf.save(model, tmp_path / "model.safetensors"))
    assert torch.equal(loaded(images), model(images))


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_row_learns(name: str) -> None:
    model = tiny(name).train()
    model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", ["poolformer_s12", "poolformerv2_s12", "convformer_s18", "caformer_s18"])
def test_models_without_a_fixed_plane_take_any_size(name: str) -> None:
    assert tiny(name)(torch.randn(1, 3, 96, 41)).shape == (1, 5)


@pytest.mark.parametrize("name", ["metaformer_ppaa_s12_224", "metaformer_ppff_s12_224", "randformer_s12"])
def test_models_with_a_fixed_plane_say_so(name: str) -> None:
    with pytest.raises(ValueError, match="img_size"):
        tiny(name)(torch.randn(1, 3, 96, 96))


def test_drop_path_grows_linearly_and_v1_shares_it_between_branches() -> None:
    blocks = list(lf.blocks_of(lf.create("poolformer_s12", **TINY, drop_path_rate=0.4)).values())
    assert [getattr(b.mix.drop, "drop_prob", 0.0) for b in blocks] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert all(b.mix.drop is b.ffn.drop for b in blocks[1:])
    apart = lf.blocks_of(lf.create("convformer_s18", **TINY, drop_path_rate=0.4))["stages.3.blocks.0"]
    assert isinstance(apart.mix.drop, DropPath)
    assert apart.mix.drop is not apart.ffn.drop


def test_the_start_of_v1_leaves_stem_and_downsampling_to_torch() -> None:
    v1, v2 = lf.create("poolformer_s12", **TINY), lf.create("poolformerv2_s12", **TINY)
    assert v1.stages[3].blocks[0].ffn.fn.fc1.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert v1.stem.conv.weight.std() > 0.04
    assert v1.stem.conv.bias.any()
    assert v2.stem.conv.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not v2.stem.conv.bias.any()


def test_eps_is_the_official_one_everywhere() -> None:
    v1, ca = lf.create("poolformer_s12", **TINY), lf.create("caformer_s18", **TINY)
    assert {m.eps for m in v1.modules() if hasattr(m, "eps")} == {1e-5}
    assert ca.head.norm.eps == 1e-5
    assert {m.eps for n, m in ca.named_modules() if hasattr(m, "eps") and n != "head.norm"} == {1e-6}


def test_ablation_rows_change_what_they_say() -> None:
    def block(row: str) -> Any:
        return tiny(f"poolformer_s12_{row}").stages[2].blocks[0]

    assert block("pool7").mix.fn.pool.kernel_size == 7
    assert block("nomlp").slots == ("pre", "mix")
    assert isinstance(block("noresidual").mix.skip, NoSkip)
    assert isinstance(block("nonorm").ffn.norm, nn.Identity)
    assert isinstance(block("batchnorm").mix.norm, nn.BatchNorm2d)
    assert isinstance(block("layernorm").mix.norm, nn.LayerNorm)
    assert isinstance(block("silu").ffn.fn.act, nn.SiLU)
    assert block("depthwise").mix.fn.conv.groups == 32
    assert not block("random").mix.fn.random_matrix.requires_grad


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("scale", [0.1, None])
def test_batch_norms_of_blocks_fold_away(layout: str, scale: float | None) -> None:
    model = tiny("poolformer_s12_batchnorm", layout=layout, layer_scale_init_values=scale)
    fused, images = lf.fuse(model), torch.randn(2, 3, 64, 64)
    assert not any(isinstance(m, _BatchNorm) for block in lf.blocks_of(fused).values() for m in block.modules())
    torch.testing.assert_close(fused(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["modified", "layer", "batch"])
def test_both_layouts_of_a_norm_compute_the_same(norm: str) -> None:
    first, last = (tiny("metaformer", layout=layout, norm=norm, norm_eps=1e-3) for layout in ("NCHW", "NHWC"))
    shapes = last.state_dict()
    last.load_state_dict({k: v.reshape(shapes[k].shape) for k, v in first.state_dict().items()})
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(first(images), last(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"token_mixers": "convolution"}, "convolution"),
        ({"norm": "rms"}, "rms"),
        ({"act": "tanh"}, "tanh"),
        ({"head": "none"}, "head"),
        ({"dims": [8, 16]}, "dims"),
        ({"layout": "NLC"}, "NLC"),
        ({"pool_size": 4}, "odd"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lf.create("metaformer", **{**TINY, **arguments})


def test_every_name_is_registered() -> None:
    from leanformer.backbones import MODELS as REGISTERED

    assert set(MODELS) <= set(REGISTERED)
    assert len(MODELS) == 5 + 5 + 15 + 40 + 13


@pytest.mark.parametrize("name", ["metaformer_pppa_s12_224", "metaformer_ppaa_s12_224"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resizing_a_hybrid_resamples_the_positions_of_its_stages(name: str, dtype: torch.dtype) -> None:
    model, images = tiny(name, dims=[32, 32, 32, 32]).to(dtype), torch.randn(1, 3, 96, 128)
    resized = lf.resize(model, (96, 128))
    assert next(resized.parameters()).dtype == dtype
    with torch.no_grad():
        expected = any_size(copy.deepcopy(model).float())(images)
        assert (resized.float()(images) - expected).abs().max() < (1e-5 if dtype == torch.float32 else 1e-2)
