"""Token mixers: what each computes, in every layout, and as a method on every backbone."""

import copy
import itertools
from typing import Any

import pytest
import torch
from families import VIT, backbone, images
from helpers import randomise
from torch import Tensor
from torch.nn import functional as F

import leanformer as lf
from leanformer.core import Grid, blocks_of
from leanformer.layers.activations import activation
from leanformer.layers.layout import from_plane, from_tokens, to_plane, to_tokens
from leanformer.layers.mixers import FIXED_SIZE, MIXERS, make_mixer

FAMILIES = ("vit", "swin", "mixer", "caformer")
ANY_SIZE = [name for name in MIXERS if name not in FIXED_SIZE]
PLANE = torch.randn(2, 32, 4, 6, generator=torch.Generator().manual_seed(0))


def in_layout(plane: Tensor, layout: str) -> Tensor:
    return from_plane(plane, None, layout)


def windows_mean(plane: Tensor, size: int) -> Tensor:
    """The mean of each window, window by window."""
    height, width, half = plane.shape[2], plane.shape[3], size // 2
    mean = torch.empty_like(plane)
    for i in range(height):
        for j in range(width):
            window = plane[:, :, max(0, i - half) : i + half + 1, max(0, j - half) : j + half + 1]
            mean[:, :, i, j] = window.mean(dim=(2, 3))
    return mean


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NLC"])
@pytest.mark.parametrize("size", [1, 3, 5, 7, 9])
def test_pooling_is_the_window_s_true_mean_minus_the_patch(size: int, layout: str) -> None:
    mixer = make_mixer("pooling", 32, layout=layout, grid=Grid(0, (4, 6)), pool_size=size)
    expected = windows_mean(PLANE, size) - PLANE
    torch.testing.assert_close(mixer(in_layout(PLANE, layout)), in_layout(expected, layout), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_computes_the_same_in_every_layout(name: str) -> None:
    grid = Grid(0, (4, 6))
    first = randomise(make_mixer(name, 32, layout="NCHW", size=(4, 6)))
    for layout in ("NHWC", "NLC"):
        other = make_mixer(name, 32, layout=layout, grid=grid, size=(4, 6))
        other.load_state_dict(first.state_dict())
        expected = in_layout(first(PLANE), layout)
        torch.testing.assert_close(other(in_layout(PLANE, layout)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NLC"])
def test_layouts_go_back_and_forth(layout: str) -> None:
    x = in_layout(PLANE, layout)
    assert torch.equal(from_plane(*to_plane(x, layout, Grid(0, (4, 6))), layout), x)
    assert torch.equal(from_tokens(to_tokens(x, layout), layout, like=x), x)
    assert torch.equal(to_tokens(x, layout), in_layout(PLANE, "NLC"))


def test_the_random_matrix_has_rows_that_sum_to_one_and_stands_left() -> None:
    mixer = make_mixer("random", 32, layout="NCHW", size=(4, 6))
    matrix = mixer.random_matrix
    assert not matrix.requires_grad
    torch.testing.assert_close(matrix.sum(1), torch.ones(24))
    expected = torch.einsum("mn,bcn->bcm", matrix, PLANE.flatten(2)).view_as(PLANE)
    torch.testing.assert_close(mixer(PLANE), expected)


def test_the_global_filter_is_a_circular_convolution() -> None:
    mixer = make_mixer("global_filter", 32, layout="NCHW", size=(4, 6))
    kernel = torch.randn(32, 4, 6)
    mixer.complex_weight.data = torch.view_as_real(torch.fft.rfft2(kernel).permute(1, 2, 0)).contiguous()
    padded = torch.cat([PLANE[:, :, 1:], PLANE], dim=2)
    padded = torch.cat([padded[..., 1:], padded], dim=3)
    expected = F.conv2d(padded, kernel.flip(1, 2)[:, None], groups=32)
    torch.testing.assert_close(mixer(PLANE), expected, rtol=1e-4, atol=1e-4)


def test_attention_is_softmax_of_products_with_heads_of_fixed_width() -> None:
    mixer = randomise(make_mixer("attention", 32, layout="NCHW", head_dim=16))
    assert mixer.num_heads == 2
    q, k, v = mixer.qkv(PLANE.flatten(2).mT).view(2, 24, 3, 2, 16).permute(2, 0, 3, 1, 4)
    mixed = ((q @ k.mT) / 4).softmax(-1) @ v
    expected = mixer.proj(mixed.transpose(1, 2).flatten(2)).mT.view_as(PLANE)
    torch.testing.assert_close(mixer(PLANE), expected, rtol=1e-4, atol=1e-5)


def test_prefix_tokens_read_the_patches_and_patches_do_not_read_them() -> None:
    tokens = torch.cat([torch.randn(2, 2, 32), in_layout(PLANE, "NLC")], dim=1)
    grid, mean = Grid(2, (4, 6)), PLANE.mean(dim=(2, 3))[:, None]
    pooled = make_mixer("pooling", 32, grid=grid)(tokens)
    torch.testing.assert_close(pooled[:, :2], mean - tokens[:, :2])
    torch.testing.assert_close(make_mixer("identity", 32, grid=grid)(tokens)[:, :2], mean.expand(-1, 2, -1))
    for name in ("pooling", "identity", "depthwise", "separable", "global_filter"):
        mixer = make_mixer(name, 32, grid=grid, size=(4, 6))
        alone = copy.deepcopy(mixer)
        alone.grid = Grid(0, (4, 6))
        torch.testing.assert_close(mixer(tokens)[:, 2:], alone(tokens[:, 2:]))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        *itertools.product(MIXERS, FAMILIES),
        ("global_filter", "poolformer"),
        ("random", "timm_caformer"),
        ("pooling", "lvvit"),
    ],
)
def test_every_mixer_works_in_every_backbone_and_leaves_the_rest_alone(name: str, family: str) -> None:
    model = backbone(family)
    mixed = lf.apply(model, lf.TokenMixer(mixer=name))
    old, new = model.state_dict(), mixed.state_dict()
    assert all(torch.equal(new[key], value) for key, value in old.items() if ".mix.fn." not in key)
    assert {key for key in new if ".mix.fn." not in key} == {key for key in old if ".mix.fn." not in key}
    randomise(mixed).train()
    x = images(mixed)
    output = mixed(x)
    torch.stack([part.square().sum() for part in (output if isinstance(output, tuple) else (output,))]).sum().backward()
    for path, parameter in mixed.named_parameters():
        assert parameter.requires_grad is not path.endswith("random_matrix")
        if parameter.requires_grad:
            assert parameter.grad is not None, path


@pytest.mark.parametrize("name", MIXERS)
def test_the_logits_still_depend_on_the_image(name: str) -> None:
    mixed = randomise(lf.apply(backbone("vit"), lf.TokenMixer(mixer=name))).eval()
    x = images(mixed)
    assert (mixed(x)[0] - mixed(x)[1]).abs().max() > 1e-4


def dynamic_vit() -> Any:
    return randomise(lf.create("vit", **VIT, dynamic_img_size=True)).eval()


@pytest.mark.parametrize("name", ANY_SIZE)
@pytest.mark.parametrize("make", [dynamic_vit, lambda: backbone("poolformer")])
def test_mixers_without_a_fixed_plane_follow_the_image(name: str, make: Any) -> None:
    mixed = lf.apply(make(), lf.TokenMixer(mixer=name)).eval()
    assert mixed(torch.randn(1, 3, 64, 96)).shape == (1, 5)
    assert mixed(torch.randn(1, 3, 64, 64)).shape == (1, 5)


@pytest.mark.parametrize("name", FIXED_SIZE)
@pytest.mark.parametrize("make", [dynamic_vit, lambda: backbone("poolformer")])
def test_mixers_with_a_fixed_plane_say_so(name: str, make: Any) -> None:
    mixed = lf.apply(make(), lf.TokenMixer(mixer=name)).eval()
    assert mixed(images(mixed)).shape == (2, 5)
    with pytest.raises(ValueError, match="img_size"):
        mixed(torch.randn(1, 3, 64, 96))


def test_the_size_of_a_mixer_is_the_model_s_and_not_the_last_image_s() -> None:
    model = dynamic_vit()
    model(torch.randn(1, 3, 64, 64))
    mixed = lf.apply(model, lf.TokenMixer(mixer="spatial_fc"))
    assert blocks_of(mixed)["blocks.0"].mix.fn.tokens == 17


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "separable",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("identity", "random", "global_filter")),
    ],
)
def test_every_mixer_compiles_and_exports(name: str) -> None:
    mixed = randomise(lf.apply(backbone("vit"), lf.TokenMixer(mixer=name, blocks=(0,)))).eval()
    x = images(mixed, 3)
    torch._dynamo.reset()
    compiled = torch.compile(mixed, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), mixed(x), rtol=1e-4, atol=1e-5)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(mixed, (x,), dynamic_shapes=({0: batch},)).module()
    torch.testing.assert_close(program(x[:1]), mixed(x[:1]), rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_runs_in_half_precision(name: str) -> None:
    mixed = randomise(lf.apply(backbone("vit"), lf.TokenMixer(mixer=name))).eval().to(torch.bfloat16)
    output = mixed(images(mixed))
    assert output.dtype == torch.bfloat16
    assert output.isfinite().all()


@pytest.mark.parametrize("family", ["gmlp", "gfnet"])
def test_backbones_that_mix_tokens_inside_their_mlp_are_refused(family: str) -> None:
    gfnet = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_classes": 5}
    model = backbone("gmlp") if family == "gmlp" else lf.create("gfnet", **gfnet)
    with pytest.raises(ValueError, match="channel MLP as well"):
        lf.apply(model, lf.TokenMixer())


def test_stages_and_blocks_choose_the_place() -> None:
    mixed = lf.apply(
        backbone("caformer"), lf.TokenMixer(mixer="pooling", stages=(0,)), lf.TokenMixer(mixer="identity", stages=(3,))
    )
    kinds = [type(block.mix.fn).__name__ for block in blocks_of(mixed).values()]
    assert kinds == ["Pooling", "Separable", "SelfAttention", "Identity"]


def test_a_mixer_that_needs_the_plane_is_refused_behind_one_that_leaves_it() -> None:
    lean = lf.apply(backbone("vit"), lf.EViT(keep_rate=0.5, at=(1,)))
    with pytest.raises(ValueError, match="grid of patches"):
        lf.apply(lean, lf.TokenMixer(mixer="pooling", blocks=(2,)))
    assert lf.apply(lean, lf.TokenMixer(mixer="pooling", blocks=(0,)))(images(lean)).shape == (2, 5)
    assert lf.apply(lean, lf.TokenMixer(mixer="attention", blocks=(2,)))(images(lean)).shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixer": "fourier"}, "fourier"),
        ({"pool_size": 2}, "pool_size"),
        ({"kernel_size": 0}, "kernel_size"),
        ({"expansion": 0}, "expansion"),
        ({"act": "tanh"}, "tanh"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lf.TokenMixer(**options)


def test_a_deit_whose_first_half_pools_learns_and_runs_at_another_size() -> None:
    torch.manual_seed(0)
    model = lf.create("deit_tiny_patch16_224", **{**VIT, "depth": 12}, dynamic_img_size=True)
    model = lf.apply(model, lf.TokenMixer(mixer="pooling", blocks=tuple(range(6)))).train()
    x, y = torch.randn(16, 3, 32, 32), torch.arange(16) % 5
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert model.eval()(torch.randn(2, 3, 48, 64)).shape == (2, 5)


def test_star_relu_may_start_where_a_normal_input_stays_of_mean_0_and_variance_1():
    torch.manual_seed(0)
    x = torch.randn(1_000_000, dtype=torch.float64)
    y = activation("star_relu_normal")().double()(x)
    assert abs(y.mean()) < 5e-3
    assert abs(y.var() - 1) < 1e-2
    act = lf.create("metaformer", depths=(1,), dims=(32,), act="star_relu_normal").stages[0].blocks[0].ffn.fn.act
    assert (round(act.scale.item(), 4), round(act.bias.item(), 4)) == (0.8944, -0.4472)
