"""LV-ViT: its figures, its stems, its heads, its training answers, and what timm's tools ask of a model."""

import copy
import pickle

import pytest
import timm
import torch
import torch.nn.functional as F
from helpers import randomise
from timm.optim import param_groups_layer_decay
from torch import nn

import leanformer as lf
from leanformer.backbones.lvvit import LVViT
from leanformer.layers.mix_token import Dense, draw_mix, mix_tokens

TINY = {"img_size": 32, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 5}
PUBLISHED = {
    "lvvit_t": (8.535, 2.868),
    "lvvit_s": (26.152, 6.551),
    "lvvit_m": (55.831, 12.678),
    "lvvit_l": (150.120, 58.694),
    "lvvit_s_384": (26.298, 21.896),
    "lvvit_plus_tiny": (15.689, 3.457),
    "lvvit_plus_xsmall": (25.369, 5.532),
    "lvvit_plus_small": (25.369, 5.532),
    "lvvit_plus_medium": (55.201, 11.839),
    "lvvit_plus_large": (147.169, 55.974),
}


def tiny(**arguments) -> LVViT:
    torch.manual_seed(0)
    return randomise(lf.create("lvvit", **{**TINY, **arguments})).eval()


def images(*size: int) -> torch.Tensor:
    return torch.randn(2, 3, *(size or (32, 32)))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_macs_are_those_of_the_official_models(name: str):
    with torch.device("meta"):
        count = lf.measure.count(timm.create_model(name))
    assert (round(count.parameters / 1e6, 3), round(count.macs / 1e9, 3)) == PUBLISHED[name]


@pytest.mark.parametrize("stem", ["4_2", "4_2_128", "4c", "6c", "naive"])
def test_every_stem_folds_its_batch_norms(stem: str):
    model = tiny(stem=stem)
    fast = lf.fuse(model)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fast.modules())
    x = images()
    torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize(
    ("stem", "strides", "widths"),
    [
        ("4_2", [2, 1, 1], [64, 64, 64]),
        ("4_2_128", [2, 1, 1], [128, 128, 128]),
        ("4c", [2, 2, 2, 2], [4, 8, 16, 32]),
        ("6c", [2, 1, 1, 2, 2, 2], [4, 4, 4, 8, 16, 32]),
        ("naive", [], []),
    ],
)
def test_stems_are_convolution_norm_and_activation_in_turn(stem: str, strides: list[int], widths: list[int]):
    model, y = tiny(stem=stem).patch_embed, images()
    expected = model(y)
    state = model.state_dict()
    for k, (stride, width) in enumerate(zip(strides, widths), start=1):
        kernel = state[f"conv{k}.weight"]
        assert kernel.shape[0] == width
        y = F.conv2d(y, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        norm = (state[f"bn{k}.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
        y = F.batch_norm(y, *norm)
        last = k == len(strides) and "proj.weight" not in state
        y = y if last else F.relu(y) if stem.startswith("4_2") else F.gelu(y)
    if "proj.weight" in state:
        y = F.conv2d(y, state["proj.weight"], state["proj.bias"], stride=state["proj.weight"].shape[-1])
    torch.testing.assert_close(expected, y.permute(0, 2, 3, 1))


def test_stems_of_one_stride_refuse_other_patches():
    with pytest.raises(ValueError, match="patches of 16 pixels, not of 8"):
        lf.create("lvvit", **TINY, stem="4c", patch_size=8)
    with pytest.raises(ValueError, match="unknown stem '5c'"):
        lf.create("lvvit", **TINY, stem="5c")
    assert tiny(stem="4_2", patch_size=8).patch_embed.grid_size == (4, 4)


def test_branches_are_divided_by_skip_lam():
    model, x = tiny(skip_lam=3.0), torch.randn(2, 5, 32)
    mix = model.blocks[0].mix
    torch.testing.assert_close(mix(x), x + mix.fn(mix.norm(x)) / 3.0, rtol=0, atol=0)


def test_aux_head_adds_half_of_the_largest_patch_logits():
    model, x = tiny(), images()
    tokens = model.forward_features(x)
    expected = model.head(tokens[:, 0]) + 0.5 * torch.stack([model.aux_head(t).amax(0) for t in tokens[:, 1:]])
    torch.testing.assert_close(model(x), expected)
    model.train()
    torch.testing.assert_close(model.forward_head(tokens), expected)


def test_unused_aux_head_is_frozen_and_changes_nothing():
    model, x = tiny(aux="unused"), images()
    assert not model.aux_head.weight.requires_grad
    before = model(x)
    model.aux_head.weight.data.add_(1.0)
    assert torch.equal(model(x), before)
    assert not hasattr(tiny(aux="none"), "aux_head")


def test_distillation_token_sits_behind_the_class_token_and_the_heads_are_averaged():
    model, x = tiny(distilled=True, aux="unused"), images()
    tokens = model.forward_features(x)
    cls, dist = model.head(tokens[:, 0]), model.head_dist(tokens[:, 1])
    torch.testing.assert_close(model(x), (cls + dist) / 2)
    assert model.num_prefix_tokens == model.blocks[0].grid.prefix == 2
    embedded, _ = model.embed(x)
    torch.testing.assert_close(embedded[0, 1], (model.dist_token + model.dist_pos_embed)[0, 0])
    assert model.train()(x).shape == (2, 5)
    model.set_distilled_training()
    logits, distilled = model(x)
    assert logits.shape == distilled.shape == (2, 5)
    assert not torch.equal(logits, distilled)


def test_training_answers_with_the_logits_of_every_patch():
    model = tiny(return_dense=True)
    x = images()
    expected = model.forward_features(x)
    model.train()
    model.patch_embed.eval()
    answer = model(x)
    assert isinstance(answer, Dense)
    torch.testing.assert_close(answer.logits, model.head(expected[:, 0]))
    torch.testing.assert_close(answer.dense, model.aux_head(expected[:, 1:]))
    assert not answer.mixed.any()


def test_mix_token_swaps_the_masked_patches_with_the_flipped_batch():
    model, x = tiny(img_size=64, return_dense=True, mix_token=True), images(64, 64)
    plain, _ = model.embed(x)
    model.train()
    model.patch_embed.eval()
    torch.manual_seed(1)
    mixed_tokens, mask = model.embed(x)
    assert 0 < mask.sum() < 16
    for n, from_partner in enumerate(mask.flatten(), start=1):
        expected = plain[:, n] - model.pos_embed[:, n]
        expected = (expected.flip(0) if from_partner else expected) + model.pos_embed[:, n]
        torch.testing.assert_close(mixed_tokens[:, n], expected)
    assert torch.equal(mixed_tokens[:, 0], plain[:, 0])


def test_mix_boxes_are_boxes_and_cover_a_quarter_of_the_plane_in_the_mean():
    torch.manual_seed(0)
    masks = torch.stack([draw_mix(14, 10) for _ in range(2000)])
    for mask in masks[:50]:
        assert torch.equal(mask, mask.any(1)[:, None] & mask.any(0)[None])
    # clipped at the borders and rounded down, boxes of the mean area ½ lose about half of it
    assert 0.2 < masks.float().mean() < 0.4
    x = torch.randn(3, 14, 10, 4)
    assert torch.equal(mix_tokens(mix_tokens(x, masks[0]), masks[0]), x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mix_token": True}, "return_dense=True"),
        ({"aux": "none", "return_dense": True}, "aux='max'"),
        ({"aux": "mean"}, "'max', 'unused' or 'none'"),
        ({"img_size": 40}, "40x40 is not a multiple of the patch size 16"),
        ({"num_heads": 3}, "not a multiple of num_heads 3"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        lf.create("lvvit", **{**TINY, **arguments})


def test_other_image_sizes_are_refused_or_resampled():
    with pytest.raises(ValueError, match="built for 32x32; create it with img_size="):
        tiny()(images(48, 32))
    model = tiny(dynamic_img_size=True)
    assert model(images(48, 32)).shape == (2, 5)
    assert model.blocks[1].grid.size == (3, 2)
    with pytest.raises(ValueError, match="40x32 is not a multiple"):
        model(images(40, 32))
    x = images()
    assert torch.equal(model(x), tiny()(x))
    assert model.blocks[1].grid.size == (2, 2)


def test_resizing_resamples_the_plane_of_positions_alone():
    model = tiny(distilled=True)
    larger = lf.resize(model, 64)
    assert larger.pos_embed.shape == (1, 17, 32)
    assert torch.equal(larger.pos_embed[:, :1], model.pos_embed[:, :1])
    assert torch.equal(larger.dist_pos_embed, model.dist_pos_embed)
    assert larger(images(64, 64)).shape == (2, 5)


def test_heads_do_not_depend_on_the_number_of_patches():
    model = tiny(img_size=64)
    model.blocks[1].pre = _FirstTokens(7)
    assert model(images(64, 64)).shape == (2, 5)
    with pytest.raises(ValueError, match="output_fmt='NLC'"):
        model.forward_intermediates(images(64, 64))
    _, tokens = model.forward_intermediates(images(64, 64), indices=2, output_fmt="NLC")
    assert [t.shape[1] for t in tokens] == [6, 6]


class _FirstTokens(nn.Module):
    def __init__(self, count: int):
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : self.count]


def test_intermediates_are_planes_behind_the_chosen_blocks():
    model, x = tiny(img_size=(48, 32)), images(48, 32)
    final, planes = model.forward_intermediates(x, indices=[0, 2], norm=True, return_prefix_tokens=True)
    assert [plane.shape for plane, _ in planes] == [(2, 32, 3, 2)] * 2
    torch.testing.assert_close(final, model.forward_features(x))
    torch.testing.assert_close(planes[1][0].flatten(2).transpose(1, 2), final[:, 1:])
    torch.testing.assert_close(planes[1][1], final[:, :1])
    early = model.forward_intermediates(x, indices=[0], norm=True, stop_early=True, intermediates_only=True)
    assert torch.equal(early[0], planes[0][0])
    assert model.prune_intermediate_layers([0, 1]) == [0, 1]
    assert len(model.blocks) == 2
    assert model(x).shape == (2, 32)


def test_new_classifiers_reach_every_head():
    model = tiny(distilled=True)
    model.reset_classifier(7)
    assert model(images()).shape == (2, 7)
    assert [h.out_features for h in (model.head, model.aux_head, model.head_dist)] == [7, 7, 7]
    model.reset_classifier(0)
    assert model(images()).shape == (2, 32)
    with pytest.raises(ValueError, match="global_pool='avg'"):
        model.reset_classifier(7, "avg")


def test_gradient_checkpointing_changes_no_gradient():
    x, grads = images(), []
    for enable in (False, True):
        model = tiny().train()
        model.patch_embed.eval()
        model.set_grad_checkpointing(enable)
        model(x).square().sum().backward()
        grads.append(model.blocks[0].mix.fn.qkv.weight.grad)
    torch.testing.assert_close(*grads)


def test_layer_decay_groups_know_the_depth_of_every_parameter():
    model = tiny(distilled=True)
    groups = param_groups_layer_decay(model, layer_decay=0.5, no_weight_decay_list=model.no_weight_decay())
    scale = {id(p): g["lr_scale"] for g in groups for p in g["params"]}
    assert scale[id(model.cls_token)] < scale[id(model.blocks[0].mix.fn.qkv.weight)]
    assert scale[id(model.blocks[0].mix.fn.qkv.weight)] < scale[id(model.blocks[2].mix.fn.qkv.weight)]
    assert scale[id(model.dist_pos_embed)] == scale[id(model.pos_embed)] == scale[id(model.patch_embed.proj.weight)]


@pytest.mark.parametrize("fused", [False, True])
def test_checkpoints_describe_the_model(tmp_path, fused: bool):
    model = tiny(stem="4c", aux="unused", distilled=True, qkv_bias=True, img_size=[48, 32])
    model = lf.fuse(model) if fused else model
    again = lf.load(lf.save(model, tmp_path / "model.safetensors"))
    x = images(48, 32)
    assert torch.equal(again(x), model(x))


def test_models_copy_pickle_and_run_in_bfloat16():
    model, x = tiny(), images()
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert torch.equal(again(x), model(x))
    assert again.blocks[0].grid is again.grid
    low = model.bfloat16()(x.bfloat16())
    assert low.dtype == torch.bfloat16
    assert (low - again(x)).abs().max() < 0.2


def test_export_keeps_the_batch_free():
    model, x = tiny(), images()
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    five = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(program.module()(five), model(five))


@pytest.mark.parametrize("training", [False, True])
def test_compile_needs_no_graph_break(training: bool):
    model = tiny(return_dense=True, mix_token=True).train(training)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    answer = compiled(images())
    assert isinstance(answer, Dense) == training


def test_official_options_without_a_counterpart_are_refused():
    state = lf.to_official(lf.create("lvvit_t", img_size=32, depth=1))
    with pytest.raises(ValueError, match="head_dim=48"):
        lf.from_official("zihangJiang/TokenLabeling LV_ViT", {"head_dim": 48}, state)
    with pytest.raises(ValueError, match="before lf"):
        lf.to_official(lf.fuse(lf.create("lvvit_t", img_size=32, depth=1)))


def test_released_names_load_official_checkpoints():
    small = {"img_size": 32, "depth": 1}
    released = lf.from_official("lvvit_t", small, lf.to_official(lf.create("lvvit_t", **small)))
    assert (released.aux, released.return_dense, released.mix_token) == ("max", False, False)
    config = {"img_size": 32, "depth": 2, "num_classes": 5}
    model = randomise(lf.create("lvvit_plus_tiny", **config)).eval()
    again = lf.from_official("lvvit_plus_tiny", config, lf.to_official(model))
    x = images()
    assert torch.equal(again(x), model(x))
