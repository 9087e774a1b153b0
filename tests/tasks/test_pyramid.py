"""Feature pyramids from every family, at sizes that divide nothing."""

import pytest
import torch
from torch.nn import functional as F

import leanformer as lf
from leanformer.backbones.timm import ShiftedWindows
from leanformer.backbones.windows import shifted_windows

SMALL = {
    "poolformer": ("metaformer", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}),
    "swin": ("swin", {"img_size": 64, "embed_dim": 8, "depths": (2, 2), "num_heads": (1, 2), "window_size": 4}),
    "caformer": ("timm_metaformer", {"depths": (1, 1, 1, 1), "dims": (8, 16, 32, 64), "img_size": 64}),
    "gfnet_h": (
        "gfnet",
        {"img_size": 64, "patch_size": 4, "embed_dim": [8, 16, 24, 32], "depth": [1, 1, 1, 1]},
    ),
    "gfnet": ("gfnet", {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1}),
    "vit": ("vit", {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}),
    "lvvit": ("lvvit", {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 1}),
}  # fmt: skip
SIZES = [(64, 64), (50, 37), (97, 130)]


def small(family: str) -> torch.nn.Module:
    torch.manual_seed(0)
    name, arguments = SMALL[family]
    return lf.create(name, num_classes=5, **arguments).eval()


@pytest.mark.parametrize("family", SMALL)
def test_maps_have_the_strides_and_channels_they_say_and_equal_those_of_an_image_padded_by_hand(family):
    maps = lf.features(small(family))
    for height, width in SIZES:
        images = torch.randn(2, 3, height, width)
        largest = maps.strides[-1]
        by_hand = F.pad(images, (0, -width % largest, 0, -height % largest))
        found = maps(images)
        for x, again, stride, channels in zip(found, maps(by_hand), maps.strides, maps.channels, strict=True):
            assert x.shape == (2, channels, by_hand.shape[2] // stride, by_hand.shape[3] // stride)
            assert torch.equal(x, again)


@pytest.mark.parametrize("levels", [(0,), (1,), (0, 1), (0, 3)])
def test_fine_maps_of_a_vit_alone_take_images_of_any_size_and_are_those_of_an_image_padded_by_hand(levels):
    maps, images = lf.features(small("vit"), levels=levels), torch.randn(1, 3, 50, 37)
    whole = max(8, maps.strides[-1])
    for x, again in zip(maps(images), maps(F.pad(images, (0, -37 % whole, 0, -50 % whole))), strict=True):
        assert torch.equal(x, again)


@pytest.mark.parametrize("family", ["poolformer", "swin", "caformer", "gfnet_h"])
def test_at_the_size_it_was_built_for_a_backbone_gives_the_maps_of_its_classifier(family):
    model, images = small(family), torch.randn(2, 3, 64, 64)
    found = lf.features(model, norm=False)(images)
    for x, wanted in zip(found, model.forward_intermediates(images, intermediates_only=True), strict=True):
        torch.testing.assert_close(x, wanted)


def test_the_last_map_of_a_vit_is_resampled_to_any_size_without_another_function_at_its_own():
    model, images = small("vit"), torch.randn(1, 3, 32, 32)
    [whole] = lf.features(model, levels=(2,), norm=False)(images)
    [wanted] = model.forward_intermediates(images, indices=1, norm=True, intermediates_only=True)
    torch.testing.assert_close(whole, wanted)


@pytest.mark.parametrize("size", [(8, 8), (9, 11), (5, 14)])
def test_shifted_windows_never_join_places_that_are_further_apart_than_a_window(size):
    height, width = size
    swin = lf.features(small("swin"))
    mixer = next(m for m in swin.modules() if isinstance(m, ShiftedWindows) and any(m.target_shift_size))
    x = torch.randn(1, height, width, 8)
    moved = x.clone()
    moved[:, -1] += 1.0  # the last row, which the roll brings to the first ones
    moved[:, :, -1] += 1.0
    changed = (mixer(moved) - mixer(x)).abs().amax(-1)[0] > 1e-6
    assert not changed[: height - 4, : width - 4].any()
    assert changed[-1].all()


def test_shifted_windows_are_timms_where_whole_windows_fill_the_map():
    for block in (b for b in small("swin").modules() if isinstance(b, ShiftedWindows)):
        side = 2 * block.window_size[0] * (2 if block.input_resolution[0] > 8 else 1)
        if side != block.input_resolution[0]:
            continue
        x = torch.randn(2, side, side, block.dim)
        assert torch.allclose(shifted_windows(x, block.window_size, block.shift_size, block.attn), block(x), atol=1e-6)


@pytest.mark.parametrize("method", [lf.EViT(score="mean"), lf.ToMe(merged=2), lf.SiT(at=(1,))], ids=lambda m: m.name)
def test_methods_that_drop_merge_or_mix_tokens_are_refused_before_and_behind_with_the_reason(method):
    model = lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2)
    with pytest.raises(ValueError, match="drops, merges or mixes tokens"):
        lf.features(lf.apply(model, method))
    with pytest.raises(ValueError, match="needs the grid of patches"):
        lf.apply(lf.features(model), method)


def test_methods_that_keep_the_grid_pass_and_their_pyramid_is_saved_and_loaded(tmp_path):
    methods = {"poolformer": lf.RIFormer(), "swin": lf.RePa(idle_ratio=0.5), "vit": lf.TokenMixer(mixer="pooling")}
    for family, method in methods.items():
        maps = lf.features(lf.apply(small(family), method)).eval()
        behind = lf.apply(lf.features(small(family)), method)
        assert lf.card_of(behind).claims == lf.card_of(maps).claims
        assert lf.card_of(behind).methods == lf.card_of(maps).methods == (method,)
    again = lf.load(lf.save(maps, tmp_path / "maps.safetensors"))
    images = torch.randn(1, 3, 40, 56)
    for x, y in zip(maps(images), again(images), strict=True):
        assert torch.equal(x, y)


def test_a_backbone_with_forked_maps_gives_them_with_its_own_norms():
    model = lf.create("metaformer", depths=(1, 1), dims=(8, 16), fork_feat=True, num_classes=0)
    images = torch.randn(1, 3, 64, 64)
    for norm in model.out_norms:
        torch.nn.init.normal_(norm.weight)
    for x, wanted in zip(lf.features(model)(images), model(images), strict=True):
        torch.testing.assert_close(x, wanted)


def test_nothing_is_left_that_no_gradient_reaches():
    for family in SMALL:
        maps = lf.features(small(family)).train()
        sum(x.square().sum() for x in maps(torch.randn(2, 3, 64, 64))).backward()
        idle = [name for name, p in maps.named_parameters() if p.grad is None and p.requires_grad]
        assert not idle, (family, idle)


def test_weights_for_one_plane_and_unknown_levels_are_refused():
    with pytest.raises(ValueError, match="gives no maps for images of any size"):
        lf.features(lf.create("mixer", img_size=32, patch_size=8, embed_dim=16, num_blocks=1))
    with pytest.raises(ValueError, match="weights for one number of patches"):
        lf.features(lf.apply(small("vit"), lf.TokenMixer(mixer="spatial_fc")))
    with pytest.raises(ValueError, match="levels are from 0 to 3"):
        lf.features(small("poolformer"), levels=(3, 4))
    with pytest.raises(ValueError, match="levels are from 0 to 3 here, finest first, each once; not 2"):
        lf.features(small("poolformer"), levels=2)
