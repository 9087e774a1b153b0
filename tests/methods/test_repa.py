"""RePa: what idles, what folds, how exactly, and what is refused."""

import copy
import dataclasses
import warnings

import pytest
import torch
from families import BACKBONES, backbone, images
from helpers import randomise
from timm.layers import GluMlp, Mlp
from torch import nn

import leanformer as lf
from leanformer.core import Branch, parse_method
from leanformer.core.plan import FreshStatistics
from leanformer.methods.repa.idle import FusedFFN, FusedPair, active_channels, linear_schedule
from leanformer.methods.repa.idle_ffn import IdleFFN
from leanformer.papers.repa.tables import INCLUDED, LEFT_OUT, TABLES, build, without_attention
from leanformer.papers.table import agrees

WITH_FFN = [family for family in BACKBONES if all("ffn" in b.slots for b in lf.blocks_of(backbone(family)).values())]
QUICK = ("vit", "swin", "timm_poolformer")
"""One backbone a layout, for all options."""
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
OPTIONS = [
    {}, {"norm": "layer"}, {"idle_ratio": 1.0}, {"idle_ratio": 0.0}, {"idle_ratio": 0.05},
    {"idle_ratio": 0.6, "schedule": "linear"}, {"idle_ratio": 0.3, "norm": "layer", "rounding": "floor"},
]  # fmt: skip


def converted(family: str = "vit", **options) -> nn.Module:
    return randomise(lf.apply(backbone(family), lf.RePa(**options))).eval()


@pytest.mark.parametrize("family", WITH_FFN)
def test_fusing_is_exact_on_every_backbone_in_both_precisions(family):
    for options in OPTIONS if family in QUICK else OPTIONS[:2]:
        model = converted(family, **options)
        exact = copy.deepcopy(model).double()
        x = images(model)
        with torch.no_grad():
            error = (lf.fuse(exact)(x.double()) - exact(x.double())).abs().max()
            rounded = (lf.fuse(model)(x) - model(x)).abs().max()
            scale = max(1.0, exact(x.double()).abs().max().item())
        assert error < 1e-9 * scale, options
        assert rounded < 1e-5 * scale, options


def test_the_trained_form_is_equation_3():
    branch = Branch(nn.LayerNorm(6), Mlp(6, 24))
    ffn = randomise(IdleFFN(branch, active=6)).eval()
    x = torch.randn(2, 5, 6)
    n1, n2 = ffn.norm1, ffn.norm2
    h = (x - n1.running_mean) / (n1.running_var + 1e-5).sqrt() * n1.weight + n1.bias
    h = h @ ffn.fc1.weight.T + ffn.fc1.bias
    h = torch.cat([nn.functional.gelu(h[..., :6]), h[..., 6:]], -1)
    h = (h - n2.running_mean) / (n2.running_var + 1e-5).sqrt() * n2.weight + n2.bias
    assert torch.allclose(ffn(x), x + h @ ffn.fc2.weight.T + ffn.fc2.bias, atol=1e-5)


def test_scale_shortcut_and_biases_fold_whatever_module_they_are():
    class Third(nn.Module):
        def forward(self, x):
            return x / 3

    branch = Branch(nn.LayerNorm(8), Mlp(8, 32, bias=False), scale=Third(), skip=Third())
    ffn = randomise(IdleFFN(branch, active=8)).double().eval()
    x = torch.randn(3, 4, 8, dtype=torch.float64)
    assert (ffn.fused()(x) - ffn(x)).abs().max() < 1e-12


def test_ratio_one_collapses_to_one_linear_and_ratio_zero_keeps_the_pair():
    one, zero = (lf.fuse(converted(idle_ratio=ratio)).blocks[0].ffn for ratio in (1.0, 0.0))
    assert isinstance(one, FusedFFN)
    assert [name for name, _ in one.named_parameters()] == ["fc1.weight", "fc1.bias"]
    assert isinstance(zero, FusedPair)
    assert zero.fc1.weight.shape == (128, 32)


def test_fused_parameters_and_macs_are_the_published_ones():
    rows = {(row.table, row.model): row for row in TABLES.rows}
    for model, params in (("DeiT-Tiny", 3.494), ("PoolFormer-s12", 5.997)):
        row = rows["Table 1", f"RePa-{model}, fused"]
        counted, macs = row.measure()
        assert round(counted, 3) == params
        assert agrees(row.macs, macs), model
    for model, params in (("DeiT-Base", 51.133), ("Swin-Tiny", 17.484), ("MLPMixer-b16", 24.431)):
        with torch.device("meta"):
            found = sum(p.numel() for p in build(model, 0.75, fused=True).parameters())
        assert round(found / 1e6, 3) == params


@pytest.mark.parametrize(("table", "model"), [("Table 2", "LV-ViT-S"), ("Table 4", "DeiT-Base")])
def test_a_row_that_falls_out_of_its_tables_counting_says_so_and_follows_by_the_other(table, model):
    row = next(row for row in TABLES.rows if (row.table, row.model) == (table, model))
    assert row.differs == (LEFT_OUT if table == "Table 2" else INCLUDED)
    assert not agrees(row.macs, row.measure()[1])
    other = None if row.counted else without_attention
    assert agrees(row.macs, dataclasses.replace(row, counted=other).measure()[1])


def test_a_table_has_one_way_of_counting():
    ways = {(row.table, row.counted) for row in TABLES.rows}
    assert len(ways) == len({table for table, _ in ways})


def test_active_channels_round_as_the_official_models_do():
    assert [active_channels(1280, 0.7, r) for r in ("ceil", "floor", "nearest")] == [385, 384, 384]
    assert [active_channels(1280, 0.8, r) for r in ("ceil", "floor")] == [256, 255]
    assert active_channels(1152, 2 / 3) == 385
    assert active_channels(1152, 1 - 1 / 3) == 384


def test_the_linear_schedule_ends_idle_and_leaves_the_last_block_active():
    ratios = linear_schedule(0.75, 12)
    assert ratios[0] == pytest.approx(0.5454545)
    assert ratios[10] == pytest.approx(1.0)
    assert ratios[11] == 0.0
    model = lf.apply(backbone("vit"), lf.RePa(idle_ratio=0.75, schedule="linear"))
    assert [b.ffn.active for b in model.blocks] == [43, 22, 0, 128]


def test_ratios_may_differ_by_block_and_blocks_may_be_left_out():
    model = lf.apply(backbone("vit"), parse_method("repa:idle_ratio=(0.5,0.25),blocks=(1,3)"))
    assert [getattr(block.ffn, "active", None) for block in model.blocks] == [None, 64, None, 96]
    with pytest.raises(ValueError, match="3 values for 4 blocks"):
        lf.apply(backbone("vit"), lf.RePa(idle_ratio=(0.5, 0.5, 0.5)))


def test_activations_with_parameters_act_on_the_active_channels_alone():
    model = converted("timm_caformer", idle_ratio=0.75)
    act = next(b.ffn.act for b in lf.blocks_of(model).values())
    assert type(act).__name__ == "StarReLU"
    fused = lf.fuse(model)
    assert torch.equal(next(b.ffn.act for b in lf.blocks_of(fused).values()).scale, act.scale)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"idle_ratio": 1.5}, "from 0 to 1"), ({"schedule": "cosine"}, "static or linear"),
        ({"norm": "group"}, "batch or layer"), ({"rounding": "up"}, "ceil or floor or nearest"),
        ({"idle_ratio": 0.3, "schedule": "linear"}, "at least 0.5"), ({"refine_steps": -1}, "from 0"),
        ({"ramp_epochs": -1}, "from 0"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lf.RePa(**options)


def test_ffns_that_cannot_idle_are_refused_by_name():
    with pytest.raises(ValueError, match="no 'ffn' slot"):
        lf.apply(backbone("gmlp"), lf.RePa())
    gated = lf.create("vit", **VIT)
    gated.blocks[0].ffn.fn = GluMlp(32, 64)
    with pytest.raises(ValueError, match="GluMlp"):
        lf.apply(gated, lf.RePa())
    scaled = lf.create("vit", **VIT, scale_mlp_norm=True)
    with pytest.raises(ValueError, match="hidden channels"):
        lf.apply(scaled, lf.RePa(norm="layer"))
    model = randomise(lf.apply(scaled, lf.RePa())).eval()
    lf.fuse(model)


def test_composes_with_evit_in_any_order_and_with_token_mixers_and_sit():
    repa, evit = lf.RePa(idle_ratio=0.5), lf.EViT(keep_rate=0.7, at=(1,))
    model = lf.create("vit", **VIT)
    there, back = lf.apply(model, repa, evit), lf.apply(lf.apply(model, evit), repa)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(there.eval()(x), back.eval()(x))
    fused = lf.fuse(randomise(there).eval())
    with torch.no_grad():
        assert (fused(x) - there(x)).abs().max() < 1e-5
    for other in (lf.TokenMixer(mixer="pooling"), lf.SiT()):
        both = randomise(lf.apply(backbone("vit"), repa, other)).eval()
        with torch.no_grad():
            assert (lf.fuse(both)(x) - both(x)).abs().max() < 1e-5


def test_fuse_warns_of_statistics_that_no_batch_made():
    model = lf.apply(lf.create("vit", **VIT), lf.RePa())
    with pytest.warns(FreshStatistics, match="never seen a batch"):
        lf.fuse(model)
    model.train()(torch.randn(2, 3, 32, 32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lf.fuse(model)
        lf.fuse(lf.apply(lf.create("vit", **VIT), lf.RePa(norm="layer")))


def test_a_loaded_fused_model_does_not_warn(tmp_path):
    model = lf.apply(lf.create("vit", **VIT), lf.RePa()).train()
    model(torch.randn(4, 3, 32, 32))
    lf.save(lf.fuse(model), tmp_path / "fast.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lf.load(tmp_path / "fast.safetensors")


def test_recalibration_gives_the_mean_of_the_batches_statistics():
    model = lf.apply(lf.create("vit", **VIT), lf.RePa())
    x = torch.randn(32, 3, 32, 32) + 1
    seen = []
    model.blocks[0].ffn.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model.eval()(x)
    precise = lf.recalibrate(model, x, batch=16)
    norm, rows = precise.blocks[0].ffn.norm1, seen[0].view(2, -1, 32)
    assert torch.allclose(norm.running_mean, rows.mean(1).mean(0), atol=1e-5)
    assert torch.allclose(norm.running_var, rows.var(1).mean(0), rtol=1e-3)
    assert norm.momentum == 0.1
    assert not model.blocks[0].ffn.norm1.num_batches_tracked
    with pytest.raises(ValueError, match="no batch norm"):
        lf.recalibrate(backbone("vit"), x)


def test_synchronised_batch_norms_take_the_place_of_plain_ones():
    model = converted("swin")
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    x = images(model)
    norm = next(b.ffn.norm1 for b in lf.blocks_of(synchronised).values())
    assert isinstance(norm, nn.SyncBatchNorm)
    with torch.no_grad():
        assert torch.equal(synchronised(x), model(x))
        assert (lf.fuse(synchronised)(x) - model(x)).abs().max() < 1e-5
        synchronised.train()(x)


def test_the_ramp_starts_as_the_backbone_and_ends_in_the_form_that_folds():
    method, x = lf.RePa(idle_ratio=0.5, ramp_epochs=4.0), images(backbone("vit"))
    model = randomise(lf.apply(backbone("vit"), method).eval(), scale=0.0)
    plain = lf.apply(backbone("vit"), method.replace(ramp_epochs=0.0)).eval()
    with torch.no_grad():
        assert method.advance(model, 0.0) == {"repa_progress": 0.0}
        assert torch.equal(model(x), backbone("vit")(x))
        assert method.advance(model, 2.0) == {"repa_progress": 0.5}
        with pytest.raises(ValueError, match="50%"):
            lf.fuse(model)
        assert method.advance(model, float("inf")) == {"repa_progress": 1.0}
        for ours, theirs in zip(model.blocks, plain.blocks, strict=True):
            theirs.ffn.load_state_dict(ours.ffn.state_dict(), strict=False)
        assert torch.allclose(model(x), plain(x), atol=1e-6)
    assert lf.RePa().advance(plain, 1.0) == {}
    assert lf.RePa(schedule="linear").schedule == "linear"


@pytest.mark.parametrize("first", [0.0, 10.0])
def test_every_ffn_follows_the_ramp_that_it_was_made_with(first):
    methods = lf.RePa(blocks=(0, 1), ramp_epochs=first), lf.RePa(blocks=(2, 3), ramp_epochs=5.0)
    for order in (methods, methods[::-1]):
        model = lf.apply(backbone("vit"), *order)
        for method in order:
            method.advance(model, 2.5)
        progress = [float(getattr(block.ffn, "progress", 1.0)) for block in model.blocks]
        assert progress == [0.25 if first else 1.0] * 2 + [0.5] * 2


@pytest.mark.exhaustive
def test_a_row_of_table_6_is_a_whole_detector_with_the_papers_latency_and_accuracy_beside_it():
    row = next(row for row in TABLES.rows if row.model == "RetinaNet, RePa-Swin-Small, fused")
    assert row.published == {"ms/picture": "53.8", "AP": "38.3"}
    params, macs = row.measure()
    assert round(params, 2) == 40.1
    assert macs == pytest.approx(268.9, abs=0.1)
