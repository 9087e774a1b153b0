"""Token slimming, its starts, static operators, maps, and feature recalibration distillation."""

import copy
import math
from typing import Any

import pytest
import torch
from families import backbone
from helpers import randomise
from torch import Tensor, nn

import leanformer as lf
from leanformer.core import Step, View, blocks_of, taps, traced
from leanformer.methods.sit.method import slimmed_counts, split
from leanformer.methods.sit.recalibration import recalibrator, unpooling
from leanformer.methods.sit.slimming import FusedSlimming, TokenSlimming, lay_out, pooling_prior, resample

TINY: dict[str, Any] = {
    "img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5
}  # fmt: skip
LVVIT: dict[str, Any] = {
    "img_size": 64, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 5, "stem": "4c", "aux": "unused"
}  # fmt: skip
IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).sin().reshape(2, 3, 32, 32)


def vit(**arguments: Any) -> Any:
    return randomise(lf.create("vit", **{**TINY, **arguments})).eval()


def tokens_after(model: Any, images: Tensor = IMAGES) -> list[int]:
    """Tokens that each block sees."""
    paths = [f"{path}.pre" for path in blocks_of(model)]
    with torch.no_grad(), taps(model, paths) as seen:
        model(images)
    return [seen[path].shape[1] for path in paths]


def step(objective: Any, student: Any, images: Tensor = IMAGES, **teachers: Any) -> Step:
    views = {}
    for name, teacher in teachers.items():
        with torch.no_grad(), taps(teacher, objective.teacher_taps()[name]) as seen:
            views[name] = View(teacher(images), seen)
    with taps(student, objective.student_taps()) as seen:
        return Step(images, torch.tensor([0, 3]), View(student(images), seen), views)


# counts and places


def test_counts_are_floored_from_the_first_count():
    assert slimmed_counts(196, 0.5, 3) == [196, 98, 49, 24]
    assert slimmed_counts(324, 0.5, 3) == [324, 162, 81, 40]
    assert slimmed_counts(49, 0.6, 3) == [49, 29, 17, 10]  # 29 * 0.6 would be 17.4 and 17 * 0.6 10.2
    assert slimmed_counts(4, 0.3, 3) == [4, 1, 1, 1]


def test_counts_of_one_ratio_are_the_published_rule_bit_for_bit():
    for patches in (16, 49, 196, 197, 324, 576):
        for ratio in (step / 100 for step in range(1, 101)):
            want = [max(1, math.floor(patches * ratio**k)) for k in range(6)]
            assert slimmed_counts(patches, ratio, 5) == want


def test_counts_of_one_ratio_a_slimming_are_floored_from_those_that_come_there():
    assert slimmed_counts(196, (0.7, 0.7), 2) == [196, 137, 95]  # 196 * 0.7 * 0.7 is 96.04
    assert slimmed_counts(16, (0.5, 1.0, 0.1), 3) == [16, 8, 8, 1]


def test_every_place_can_have_a_ratio_of_its_own(tmp_path):
    method = lf.parse_method("sit:keep_ratio=(0.75,1,0.5),at=(1,2,3)")
    assert method == lf.SiT(keep_ratio=(0.75, 1, 0.5), at=(1, 2, 3))
    teacher = vit()
    model = lf.apply(teacher, method)
    assert tokens_after(model) == [17, 13, 13, 7]
    assert isinstance(blocks_of(model)["blocks.2"].pre, nn.Identity)
    again = lf.load(lf.save(model, tmp_path / "slim.safetensors"))
    assert lf.card_of(again).methods == (method,)
    assert torch.equal(again(IMAGES), model(IMAGES))
    assert torch.equal(lf.apply(teacher, method.off())(IMAGES), teacher(IMAGES))


def test_the_teacher_sees_as_many_tokens_as_each_place_leaves():
    teacher, method = vit(), lf.SiT(keep_ratio=(0.75, 1.0, 0.5), at=(1, 2, 3))
    student = lf.apply(teacher, method)
    objective = method.objective(student, teacher)
    assert objective is not None
    seen = step(objective, student, teacher=teacher).student.taps
    assert [tuple(t.shape) for t in objective.recalibrated(seen)] == [(2, 16, 32)] * 4


@pytest.mark.parametrize("operator", ["pool", "conv"])
def test_planes_are_halved_where_the_ratio_is_a_quarter(operator: Any):
    method = lf.SiT(operator=operator, keep_ratio=(0.25, 1, 0.25), at=(1, 2, 3))
    assert method.counts(vit()) == [16, 4, 4, 1]
    assert tokens_after(lf.apply(vit(), method)) == [17, 5, 5, 2]


def test_ratios_that_are_not_one_for_each_place_are_refused():
    for options in ({"at": (1, 2, 3)}, {"at": (1,)}, {"stages": (2, 2)}):
        with pytest.raises(ValueError, match=r"keep_ratio has 2 values; give one, or one for each of \d slimmings"):
            lf.apply(vit(), lf.SiT(keep_ratio=(0.5, 0.5), **options))


def test_a_search_may_slim_before_every_block_but_the_first_where_tokens_are_a_sequence():
    offered = lf.SiT.choices(vit())
    assert offered is not None
    assert offered.blocks == (1, 2, 3)
    assert offered.trained
    assert lf.SiT.choices(vit(depth=1)) is None
    for family in ("swin", "mixer", "poolformer"):
        assert lf.SiT.choices(backbone(family)) is None


def test_a_share_that_goes_leaves_the_tokens_that_its_ratio_says():
    assert lf.SiT.tokens_left(0.8, 10) == 2  # 10 * (1 - 0.8) is 1.9999999999999996
    assert lf.SiT.with_shares({3: 0.5, 1: 0.8}) == lf.SiT(at=(1, 3), keep_ratio=(0.2, 0.5))


@pytest.mark.parametrize("depth", range(1, 40))
def test_the_default_split_rises_within_any_depth(depth: int):
    at = split(depth)
    assert list(at) == sorted(set(at))
    assert len(at) == min(3, max(1, depth - 1))
    assert all(0 <= block < depth for block in at)


def test_prefix_tokens_pass_by():
    model = lf.apply(vit(reg_tokens=3), lf.SiT(at=(1, 3)))
    assert tokens_after(model) == [4 + 16, 4 + 8, 4 + 8, 4 + 4]
    x = torch.randn(2, 20, 32)
    slimming = blocks_of(model)["blocks.1"].pre
    assert torch.equal(slimming(x)[:, :4], x[:, :4])


def test_stages_and_places_are_two_ways_to_say_the_same():
    backbone = vit()
    one, other = (lf.apply(backbone, m) for m in (lf.SiT(stages=(1, 2, 1)), lf.SiT(at=(1, 3))))
    assert torch.equal(one(IMAGES), other(IMAGES))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_ratio": 0.0}, "keep_ratio must be a number above 0 to 1, or .*, not 0.0"),
        ({"keep_ratio": 1.5}, "above 0 to 1"),
        ({"keep_ratio": (0.5, 0.0)}, "or some values in brackets, each a number above 0 to 1"),
        ({"at": (1,), "stages": (1, 3)}, "one of them"),
        ({"at": (2, 1)}, "rising"),
        ({"stages": (0, 4)}, "stages"),
        ({"axis": "tokens"}, "inputs or outputs"),
        ({"start": "pool"}, "grid or random"),
        ({"operator": "pool"}, "keep_ratio=0.25"),
        ({"operator": "conv", "keep_ratio": (0.25, 0.5)}, "keep_ratio=0.25"),
        ({"recalibration": "none"}, "rtsm"),
        ({"tau": 0.0}, "tau"),
        ({"lambda_hard": -1.0}, "lambda_hard"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        lf.SiT(**options)


def test_an_unknown_preset_names_the_known():
    assert lf.SiT.preset("lvvit_plus_small", keep_ratio=0.6).stages == (9, 3, 2, 2)
    with pytest.raises(ValueError, match="lvvit_plus_tiny"):
        lf.SiT.preset("deit")


# the slimming module


def test_weights_sum_to_one_over_the_chosen_axis():
    x = torch.randn(2, 17, 8)
    for axis, dim in (("inputs", 2), ("outputs", 1)):
        weights = randomise(TokenSlimming(8, tokens=4, prefix=1, axis=axis)).weights(x)  # type: ignore[arg-type]
        assert weights.shape == (2, 4, 16)
        torch.testing.assert_close(weights.sum(dim), torch.ones_like(weights.sum(dim)))


def test_mixtures_are_of_the_tokens_before_the_norm():
    slimming, x = randomise(TokenSlimming(8, tokens=4, prefix=1)), torch.randn(2, 17, 8) * 5 + 3
    hidden = nn.functional.gelu(slimming.fc1(slimming.norm(x[:, 1:])))  # type: ignore[operator]
    weights = (slimming.fc2(hidden) * slimming.scale).softmax(1)  # type: ignore[operator]
    torch.testing.assert_close(slimming(x)[:, 1:], weights.transpose(1, 2) @ x[:, 1:])


def test_the_bias_declared_dead_has_no_effect_over_the_inputs_and_one_over_the_outputs():
    x = torch.randn(2, 17, 8)
    for axis in ("inputs", "outputs"):
        slimming = randomise(TokenSlimming(8, tokens=4, prefix=1, axis=axis))  # type: ignore[arg-type]
        before = slimming(x)
        slimming.fc2.bias.data += torch.arange(4.0)  # type: ignore[operator]
        assert torch.allclose(slimming(x), before, atol=1e-5) is (axis == "inputs")
        assert slimming.dead_parameters == (("fc2.bias",) if axis == "inputs" else ())


@pytest.mark.parametrize("axis", ["inputs", "outputs"])
@pytest.mark.parametrize("start", ["grid", "random"])
def test_fusing_leaves_two_linears_and_at_most_one_bias(axis: str, start: str):
    model = randomise(lf.apply(vit(), lf.SiT(at=(2,), axis=axis, start=start)))  # type: ignore[arg-type]
    before = set(blocks_of(model)["blocks.2"].pre.state_dict())
    fused = blocks_of(lf.fuse(model))["blocks.2"].pre
    assert isinstance(fused, FusedSlimming)
    bias = {"prior.bias"} if start == "grid" else {"fc2.bias"} if axis == "outputs" else set()
    assert set(fused.state_dict()) == {"fc1.weight", "fc1.bias", "fc2.weight"} | bias
    assert before == {"norm.weight", "norm.bias", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "scale"} | (
        {"prior.bias"} if start == "grid" else set()
    )


# the spatial prior


def test_as_many_tokens_as_patches_lie_on_the_patches():
    centres = lay_out(6, (2, 3))
    assert centres.tolist() == [[0.5, 0.5], [0.5, 1.5], [0.5, 2.5], [1.5, 0.5], [1.5, 1.5], [1.5, 2.5]]


@pytest.mark.parametrize(("tokens", "size"), [(98, (14, 14)), (24, (14, 14)), (7, (3, 9)), (1, (4, 4)), (5, (1, 10))])
def test_centres_cover_the_plane_evenly(tokens: int, size: tuple[int, int]):
    centres = lay_out(tokens, size)
    assert centres.shape == (tokens, 2)
    assert len({tuple(c) for c in centres.tolist()}) == tokens
    nearest = torch.cdist(lay_out(size[0] * size[1], size), centres).min(1).values
    assert nearest.max() < 1.5 * (size[0] * size[1] / tokens) ** 0.5


def test_the_grid_start_pools_neighbours():
    weights = pooling_prior(16, 4, (4, 4)).softmax(1).reshape(4, 4, 4)
    for token, (row, column) in enumerate([(0, 0), (0, 2), (2, 0), (2, 2)]):
        assert weights[token, row : row + 2, column : column + 2].sum() > 0.95


def test_the_grid_start_is_near_the_teacher_on_smooth_features_and_the_random_start_is_not():
    rows = torch.arange(14.0)[:, None].expand(14, 14)
    plane = torch.stack([(rows / 5).sin(), (rows.T / 5).cos()], -1).reshape(1, 196, 2)
    fine = plane.repeat(1, 1, 4)
    first, second = (pooling_prior(a, b, (14, 14)).softmax(1)[None] for a, b in ((196, 98), (98, 49)))
    grid = second @ first
    at = lay_out(49, (14, 14)).floor().long()
    want = fine.reshape(14, 14, 8)[at[:, 0], at[:, 1]]
    assert ((grid @ fine)[0] - want).square().mean() < 0.05
    random = TokenSlimming(8, tokens=49, prefix=0)(fine)[0]
    assert (random - want).square().mean() > 0.2


def test_the_prior_follows_the_size_of_the_images():
    model = lf.apply(vit(dynamic_img_size=True), lf.SiT(at=(1, 2)))
    fused = lf.fuse(model)
    for size in ((32, 32), (48, 32), (64, 64), (32, 32)):
        images = torch.randn(1, 3, *size)
        assert tokens_after(model, images)[1:] == [9, 5, 5]
        torch.testing.assert_close(fused(images), model(images), rtol=1e-4, atol=1e-4)
    assert [rows.shape for rows in traced(model, torch.randn(1, 3, 48, 32))] == [(1, 8, 24), (1, 4, 24)]


def test_the_prior_follows_the_shape_of_a_plane_with_as_many_patches():
    model = lf.apply(vit(dynamic_img_size=True), lf.SiT(at=(1,)))
    prior = blocks_of(model)["blocks.1"].pre.prior
    model(torch.randn(1, 3, 64, 16))
    torch.testing.assert_close(prior(16), resample(prior.bias, (4, 4), (8, 2)))
    model(IMAGES)
    assert torch.equal(prior(16), prior.bias)


def test_images_of_another_size_seen_before_do_not_change_what_is_built(tmp_path):
    backbone, method = vit(dynamic_img_size=True), lf.SiT(at=(1, 2))
    backbone(torch.randn(1, 3, 48, 48))
    model = lf.apply(backbone, method)
    assert tokens_after(model) == [17, 9, 5, 5]
    again = lf.load(lf.save(model, tmp_path / "slim.safetensors"))
    assert torch.equal(again(IMAGES), model(IMAGES))
    model(torch.randn(1, 3, 48, 48))
    objective = method.objective(model, backbone)
    assert objective is not None
    assert objective.size == (4, 4)


def test_a_size_that_the_backbone_was_given_later_is_its_own():
    backbone = vit()
    backbone.set_input_size(img_size=48)
    assert lf.SiT(at=(1,)).counts(backbone) == [36, 18]


def test_a_copy_follows_its_own_images():
    model = lf.apply(vit(dynamic_img_size=True), lf.SiT(at=(1,)))
    other = copy.deepcopy(model)
    model(torch.randn(1, 3, 64, 64))
    assert tokens_after(other, torch.randn(1, 3, 48, 32))[1] == 9


def test_the_prior_gets_no_weight_decay():
    from timm.optim import param_groups_weight_decay

    model = lf.apply(vit(), lf.SiT(at=(1,)))
    spared = {id(p) for p in param_groups_weight_decay(model, 0.05)[0]["params"]}
    assert id(model.get_parameter("blocks.1.pre.prior.bias")) in spared
    assert id(model.get_parameter("blocks.1.pre.scale")) in spared


def test_tokens_that_others_dropped_are_refused_with_a_prior_and_slimmed_without():
    evit = lf.EViT(at=(1,), keep_rate=0.5)
    with pytest.raises(ValueError, match="needs the grid of patches, which blocks"):
        lf.apply(vit(), evit, lf.SiT(at=(2,)))
    with pytest.raises(ValueError, match="slimmed to 8 tokens"):
        lf.apply(vit(), evit, lf.SiT(at=(1, 2)))
    assert tokens_after(lf.apply(vit(), evit, lf.SiT(at=(2,), start="random"))) == [17, 17, 9, 9]


# static operators


@pytest.mark.parametrize(
    ("operator", "counts"), [("pool", [17, 5, 2, 2]), ("conv", [17, 5, 2, 2]), ("token-mlp", [17, 9, 5, 5])]
)
@pytest.mark.parametrize("start", ["grid", "random"])
def test_static_operators_slim(operator: Any, counts: list[int], start: Any):
    ratio = 0.5 if operator == "token-mlp" else 0.25
    model = lf.apply(vit(), lf.SiT(operator=operator, keep_ratio=ratio, at=(1, 2), start=start)).eval()
    assert tokens_after(model) == counts
    torch.testing.assert_close(lf.fuse(model)(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("operator", ["pool", "conv"])
def test_passes_at_other_sizes_in_between_change_nothing_for_planes(operator: Any):
    """As in another thread, or before the recomputation of gradient checkpointing."""
    model = lf.apply(vit(dynamic_img_size=True), lf.SiT(operator=operator, keep_ratio=0.25, at=(1, 2))).train()
    model.set_grad_checkpointing(True)
    small, large = model(IMAGES), model(torch.randn(2, 3, 48, 32))
    (small.sum() + large.sum()).backward()
    first, second = (blocks_of(model)[f"blocks.{i}"].pre for i in (1, 2))
    x = torch.randn(1, 17, 32)
    assert [first(x).shape[1], second(first(x)).shape[1]] == [5, 2]
    decided = first.fn(x[:, 1:].mT.unflatten(2, (4, 4)))
    assert first.provenance(decided, 16).shape == (1, 4, 16)
    with pytest.raises(ValueError, match="7 patch tokens do not fill the plane of 3 x 2 patches"):
        second(torch.randn(1, 8, 32))


def test_the_token_mlp_starts_as_soft_pooling_exactly():
    model = lf.apply(vit(), lf.SiT(operator="token-mlp", at=(1,)))
    x = torch.randn(2, 17, 32)
    want = pooling_prior(16, 8, (4, 4)).softmax(1) @ x[:, 1:]
    torch.testing.assert_close(blocks_of(model)["blocks.1"].pre(x)[:, 1:], want)


def test_the_convolution_starts_as_average_pooling_inside_the_plane():
    backbone = vit()
    pool, conv = (lf.apply(backbone, lf.SiT(operator=o, keep_ratio=0.25, at=(1,))) for o in ("pool", "conv"))
    x = torch.randn(2, 17, 32)
    pooled, convolved = (blocks_of(m)["blocks.1"].pre(x)[:, -1] for m in (pool, conv))
    torch.testing.assert_close(convolved, pooled)  # the last window lies wholly inside


# maps


def test_maps_say_what_each_patch_gives_through_all_slimmings():
    model = randomise(lf.apply(vit(), lf.SiT(at=(1, 3))))
    maps = traced(model, IMAGES)
    assert [m.shape for m in maps] == [(2, 8, 16), (2, 4, 16)]
    for m in maps:
        torch.testing.assert_close(m.sum(2), torch.ones_like(m[:, :, 0]))
    for ours, theirs in zip(traced(lf.fuse(model), IMAGES), maps):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_without_slimming_and_with_the_teachers_weights_only_the_labels_cost():
    teacher = vit()
    method = lf.SiT(keep_ratio=1.0)
    student = lf.apply(teacher, method)
    objective = method.objective(student, teacher)
    assert objective is not None
    assert not list(objective.parameters())
    terms = objective(step(objective, student, teacher=teacher))
    assert terms["token"] == 0
    assert terms["logits"].abs() < 1e-6
    assert terms["cls"] > 0


def test_every_block_is_supervised_and_the_reverse_modules_learn():
    teacher, method = vit(), lf.SiT(at=(1, 2))
    student = lf.apply(teacher, method).train()
    objective = method.objective(student, teacher)
    assert objective is not None
    assert objective.at == ["blocks.1.pre", "blocks.2.pre", "blocks.3.pre", "blocks.3"]
    assert objective.learning_rate_scale == 5.0
    terms = objective(step(objective, student, teacher=teacher))
    sum(terms.values()).backward()  # type: ignore[union-attr]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in objective.parameters())
    assert student.get_parameter("blocks.1.pre.fc1.weight").grad.count_nonzero()


@pytest.mark.parametrize("other", [lf.EViT(at=(2,)), lf.ToMe(at=(2,))])
def test_tokens_that_others_drop_too_are_refused_before_training(other: Any):
    teacher, method = vit(), lf.SiT(at=(1,))
    student = lf.apply(teacher, method, other)
    with pytest.raises(ValueError, match=r"blocks\.2\.mix \(\w+\) drops.*lambda_token=0"):
        method.objective(student, teacher)
    logits = method.replace(lambda_token=0).objective(student, teacher)
    assert logits is not None
    assert set(logits(step(logits, student, teacher=teacher))) == {"cls", "logits"}


def test_the_objective_needs_no_teacher_only_when_there_is_none():
    student = lf.apply(vit(), lf.SiT())
    assert lf.SiT().objective(student, None) is None
    with pytest.raises(ValueError, match="lambda_token=0"):
        lf.SiT().objective(student, nn.Linear(2, 2))


@pytest.mark.parametrize("recalibration", ["rtsm", "token-mlp", "interpolation", "deconvolution"])
@pytest.mark.parametrize("operator", ["tsm", "pool"])
def test_every_recalibration_brings_back_all_tokens(recalibration: Any, operator: Any):
    teacher = vit()
    method = lf.SiT(recalibration=recalibration, operator=operator, keep_ratio=0.5 if operator == "tsm" else 0.25)
    student = lf.apply(teacher, method)
    objective = method.objective(student, teacher)
    assert objective is not None
    seen = step(objective, student, teacher=teacher).student.taps
    assert [tuple(t.shape) for t in objective.recalibrated(seen)] == [(2, 16, 32)] * 4


def test_reverse_modules_start_as_un_pooling_with_the_grid_and_at_random_without():
    x = torch.randn(2, 4, 32)
    grid = recalibrator("token-mlp", 32, 4, (4, 4), start="grid")
    torch.testing.assert_close(grid(x), unpooling(4, (4, 4)) @ nn.functional.layer_norm(x, (32,)))
    random = recalibrator("token-mlp", 32, 4, (4, 4))
    assert random(x).abs().mean() < 0.1 * grid(x).abs().mean()


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({"lambda_token": 0, "lambda_logits": 0}, {"cls"}),
        ({"lambda_token": 0}, {"cls", "logits"}),
        ({}, {"cls", "logits", "token"}),
        ({"lambda_logits": 0}, {"cls", "token"}),
    ],
)
def test_loss_combinations_are_configurations(options: dict[str, Any], terms: set[str]):
    teacher, method = vit(), lf.SiT(**options)
    student = lf.apply(teacher, method)
    objective = method.objective(student, teacher)
    assert objective is not None
    assert objective(step(objective, student, teacher=teacher)).keys() == terms


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vit", {**TINY, "embed_dim": 48, "depth": 6, "img_size": 48, "dynamic_img_size": True}),
        ("swin", {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": [2, 2],
                  "num_heads": [2, 4], "num_classes": 5}),
    ],
)  # fmt: skip
def test_another_architecture_can_teach_tokens_through_a_projection(name: str, arguments: dict[str, Any]):
    teacher = lf.create(name, **arguments).eval()
    method = lf.SiT()
    student = lf.apply(vit(), method)
    objective = method.objective(student, teacher)
    assert objective is not None
    terms = objective(step(objective, student, teacher=teacher))
    assert terms["token"].isfinite()
    assert any(isinstance(p, nn.Linear) for p in objective.project)


@pytest.mark.parametrize(
    ("name", "arguments", "side"),
    [("deit_tiny_distilled_patch16_224", TINY, 32), ("lvvit", {**LVVIT, "distilled": True}, 64)],
)
def test_a_cnn_teaches_the_distillation_token(name: str, arguments: dict[str, Any], side: int):
    teacher = randomise(lf.create(name, **arguments)).eval()
    cnn = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    method = lf.SiT(lambda_hard=1.0, at=(1, 3))
    student = lf.apply(teacher, method).train()
    objective = method.objective(student, teacher)
    assert objective is not None
    assert objective.teacher_taps()["cnn"] == frozenset()
    images = torch.randn(2, 3, side, side)
    seen = step(objective, student, images, teacher=teacher, cnn=cnn)
    terms = objective(seen)
    want = nn.functional.cross_entropy(seen.student.taps["head_dist"], cnn(images).argmax(1))
    torch.testing.assert_close(terms["hard"], want)
    sum(terms.values()).backward()  # type: ignore[union-attr]
    assert student.get_parameter("head_dist.weight").grad.count_nonzero()
    assert student.get_parameter("head.weight").grad.count_nonzero()
    with pytest.raises(ValueError, match="'cnn'"):
        objective(step(objective, student, images, teacher=teacher))
    with pytest.raises(ValueError, match="distillation token"):
        method.objective(lf.apply(vit(), method), teacher)


# with other methods, and out of the door


def test_sit_composes_with_repa_and_fuses():
    backbone = vit()
    methods = (lf.SiT(), lf.RePa(idle_ratio=0.75))
    one, other = (randomise(lf.apply(backbone, *order)).eval() for order in (methods, methods[::-1]))
    assert torch.equal(one(IMAGES), other(IMAGES))
    torch.testing.assert_close(lf.fuse(one)(IMAGES), one(IMAGES), rtol=1e-3, atol=1e-4)


def test_the_exported_model_has_nothing_that_only_training_needs():
    teacher, method = vit(), lf.SiT()
    student = lf.apply(teacher, method).eval()
    reverse = method.objective(student, teacher)
    assert reverse is not None
    program = torch.export.export(lf.fuse(student), (IMAGES,))
    names = list(program.state_dict)
    assert sum(p.numel() for p in reverse.parameters()) > 0
    assert not [name for name in names if "rtsm" in name or "scale" in name or ".pre.norm" in name]
    assert sum(v.numel() for v in program.state_dict.values()) < sum(p.numel() for p in student.parameters())
    torch.testing.assert_close(program.module()(IMAGES), student(IMAGES), rtol=1e-4, atol=1e-4)


def test_ratio_and_place_sweeps_run():
    backbone = vit()
    for ratio in (0.3, 0.5, 0.7):
        for stages in ((1, 1, 1, 1), (2, 1, 1), (1, 3)):
            model = lf.apply(backbone, lf.SiT(keep_ratio=ratio, stages=stages))
            counts = slimmed_counts(16, ratio, len(stages) - 1)
            assert tokens_after(model)[-1] == 1 + counts[-1]
