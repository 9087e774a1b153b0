"""The affine branch, its start and its disappearance into the norm, on every kind of block."""

import copy

import pytest
import torch
from helpers import randomise
from torch import nn

import leanformer as lf
from leanformer.methods.riformer.affine import Affine, NormResidual, absorb, affine

TINY = {
    "vit": {"patch_size": 8, "embed_dim": 32, "depth": 8, "num_heads": 2, "init_values": 0.1},
    "swin": {"patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2)},
    "mixer": {"patch_size": 8, "embed_dim": 32, "num_blocks": 4},
    "resmlp": {"patch_size": 8, "embed_dim": 32, "num_blocks": 4, "init_values": 0.1},
}


def tiny(name, **arguments):
    return lf.create(name, img_size=32, num_classes=5, **TINY[name] | arguments).eval()


def test_affine_is_equation_1():
    z, s, t = torch.randn(2, 5, 8), torch.randn(8), torch.randn(8)
    torch.testing.assert_close(affine(z, s, t), s * z + t - z)


def test_affine_scales_channels_in_every_layout():
    x = torch.randn(2, 8, 3, 3)
    first, last = Affine(8, "NCHW"), Affine(8, "NHWC")
    for module in (first, last):
        module.weight.data = torch.arange(8.0)
    torch.testing.assert_close(first(x), last(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(8), nn.LayerNorm(8, bias=False), nn.LayerNorm(8, elementwise_affine=False), nn.GroupNorm(1, 8),
        nn.GroupNorm(1, 8, affine=False), nn.BatchNorm1d(8),
    ],
    ids=["layer", "layer without bias", "layer without affine", "group", "group without affine", "batch"],
)  # fmt: skip
def test_norm_absorbs_scale_and_shift_and_gains_a_bias(norm):
    randomise(norm.double().eval())
    x, scale, shift = torch.randn(4, 8).double(), torch.randn(8).double(), torch.randn(8).double()
    torch.testing.assert_close(absorb(norm, scale, shift)(x), scale * norm(x) + shift, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("identity", [False, True])
def test_fused_branch_is_a_norm_and_nothing_else(name, identity):
    model = tiny(name)
    lean = randomise(lf.apply(model, lf.RIFormer(identity=identity)))
    fast = lf.fuse(lean)
    free = [path for path, block in lf.blocks_of(fast).items() if isinstance(block.mix, NormResidual)]
    assert len(free) == (2 if name == "vit" else 4)
    for path in free:
        mix = lf.blocks_of(fast)[path].mix
        dim = lf.blocks_of(fast)[path].dim
        assert sum(p.numel() for p in mix.parameters()) == 2 * dim
        assert [type(m) for m in mix.children()][1] is nn.Identity
    images = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(fast(images), lean.eval()(images), rtol=1e-4, atol=1e-5)


def test_fused_branch_is_equation_4_with_the_scale_folded_in():
    model = randomise(lf.apply(tiny("vit"), lf.RIFormer(blocks=(0,))))
    mix = model.blocks[0].mix
    (s, t), gamma = (mix.fn.weight, mix.fn.bias), mix.scale.gamma
    norm = lf.fuse(model).blocks[0].mix.norm
    torch.testing.assert_close(norm.weight, gamma * mix.norm.weight * (s - 1))
    torch.testing.assert_close(norm.bias, gamma * (mix.norm.bias * (s - 1) + t))


def test_residual_scale_stays_and_norms_without_bias_gain_one():
    model = lf.create("poolformerv2_s12", depths=(1,) * 4, dims=(8,) * 4, num_classes=5, img_size=64)
    lean = randomise(lf.apply(model, lf.RIFormer()))
    fast = lf.fuse(lean)
    mix = fast.stages[3].blocks[0].mix
    assert mix.norm.bias is not None
    assert not isinstance(mix.skip, nn.Identity)
    images = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(fast(images), lean.eval()(images), rtol=1e-3, atol=1e-4)


def test_default_keeps_a_view_of_the_image_for_the_class_token():
    assert set(lf.RIFormer().swaps(tiny("vit"))) == {"blocks.0.mix", "blocks.1.mix"}
    assert len(lf.RIFormer().swaps(tiny("vit", global_pool="avg", class_token=False))) == 8
    assert len(lf.RIFormer().swaps(tiny("swin"))) == 4
    assert len(lf.RIFormer(stages=(1,)).swaps(tiny("swin"))) == 2


def test_what_cannot_be_freed_is_refused_with_its_reason():
    with pytest.raises(ValueError, match="class token sees no patch"):
        lf.apply(tiny("vit"), lf.RIFormer(blocks=tuple(range(8))))
    with pytest.raises(ValueError, match="one branch for mixer and MLP"):
        lf.apply(lf.create("gmlp", img_size=32, num_blocks=2, embed_dim=32), lf.RIFormer())
    model = tiny("vit")
    model.blocks[0].mix.norm = nn.RMSNorm(32)
    with pytest.raises(ValueError, match="RMSNorm cannot take in"):
        lf.apply(model, lf.RIFormer())


@pytest.mark.parametrize(
    "options",
    [
        {"start": "best"}, {"distillation": "warm"}, {"temperature": 0.0}, {"label_weight": 2.0}, {"layers": -1},
        {"block_weight": -1.0}, {"relation_epochs": -1},
    ],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        lf.RIFormer(**options)


def test_starts_are_what_they_say():
    model, x = tiny("vit"), torch.randn(2, 17, 32)
    branch = {s: lf.apply(model, lf.RIFormer(start=s)).blocks[0].mix for s in ("fit", "paper", "uniform")}
    torch.testing.assert_close(branch["fit"](x), x)
    torch.testing.assert_close(branch["paper"].fn(x), -x, rtol=0, atol=0.3)
    assert branch["uniform"].fn.bias.std() > 0.3
    assert branch["uniform"].fn.weight.abs().max() <= 1


@pytest.mark.parametrize("name", TINY)
def test_calibration_finds_an_affine_teacher_exactly(name):
    teacher = randomise(lf.apply(tiny(name).double(), lf.RIFormer()))
    student = copy.deepcopy(teacher)
    for block in lf.blocks_of(student).values():
        if isinstance(block.mix.fn, Affine):
            nn.init.ones_(block.mix.fn.weight), nn.init.zeros_(block.mix.fn.bias)
    images = torch.randn(8, 3, 32, 32).double()
    assert (student(images) - teacher(images)).norm() > 1e-3
    fitted = lf.calibrate(student, teacher, images)
    torch.testing.assert_close(fitted(images), teacher(images), rtol=0, atol=1e-8)


def test_calibration_brings_the_model_closer_and_leaves_other_starts_alone():
    teacher, images = randomise(tiny("swin")), torch.randn(16, 3, 32, 32)
    error = {}
    for start in ("fit", "paper"):
        raw = lf.apply(teacher, lf.RIFormer(start=start))
        error[start] = [(m(images) - teacher(images)).norm() for m in (raw, lf.calibrate(raw, teacher, images))]
    assert error["fit"][1] < 0.5 * error["fit"][0]
    assert error["paper"][1] == error["paper"][0]


def test_everything_but_the_affine_comes_from_the_teacher():
    teacher = randomise(tiny("vit"))
    student = lf.apply(teacher, lf.RIFormer())
    theirs = teacher.state_dict()
    new = {key for key in student.state_dict() if key not in theirs}
    assert new == {f"blocks.{i}.mix.fn.{part}" for i in (0, 1) for part in ("weight", "bias")}
    assert all(torch.equal(value, theirs[key]) for key, value in student.state_dict().items() if key in theirs)


def test_identity_variant_needs_no_bias_that_the_norm_lacks():
    model = lf.create("poolformerv2_s12", depths=(1,) * 4, dims=(8,) * 4, num_classes=5, img_size=32)
    lean = randomise(lf.apply(model, lf.RIFormer(identity=True)))
    mixes = [block.mix for block in lf.blocks_of(lf.fuse(lean)).values()]
    assert all(mix.norm.bias is None for mix in mixes)
