"""Segmenters around lean backbones: logits of every pixel at any size, cards, fusing, counts beside the papers'."""

import pytest
import torch
from torch.nn import functional as F

import leanformer as lf
from leanformer.measure import count

SMALL = {
    "poolformer": ("metaformer", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}),
    "vit": ("vit", {"img_size": 64, "patch_size": 16, "embed_dim": 16, "depth": 1, "num_heads": 2}),
}


def small(family: str) -> torch.nn.Module:
    torch.manual_seed(0)
    name, arguments = SMALL[family]
    return lf.create(name, num_classes=5, **arguments)


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("kind", ["fpn", "upernet"])
def test_every_pixel_of_an_image_of_any_size_gets_logits_as_in_the_padded_image(kind, family):
    model = lf.tasks.segmenter(kind, small(family), 3, channels=64).eval()
    images = torch.randn(2, 3, 50, 71)
    logits = model(images)
    assert logits.shape == (2, 3, 50, 71)
    padded = model(F.pad(images, (0, 96 - 71, 0, 64 - 50)))
    assert torch.equal(logits, padded[:, :, :50, :71])
    model.train()(images).square().mean().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]


@pytest.mark.parametrize("kind", ["fpn", "upernet"])
def test_a_fused_segmenter_has_no_batch_norm_gives_the_same_logits_and_loads_from_its_file(kind, tmp_path):
    body = lf.apply(small("poolformer"), lf.RePa(idle_ratio=0.5))
    model = lf.tasks.segmenter(kind, body, ["sky", "road", "tree"], channels=64)
    images = torch.randn(4, 3, 50, 71)
    model = lf.recalibrate(model, images).eval()
    fused = lf.fuse(model)
    assert not any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in fused.modules())
    torch.testing.assert_close(fused(images), model(images), rtol=1e-4, atol=1e-4)
    again = lf.load(lf.save(fused, tmp_path / "fused.safetensors"))
    assert torch.equal(again(images), fused(images))
    assert lf.card_of(again).classes == ("sky", "road", "tree")


@pytest.mark.parametrize("kind", ["fpn", "upernet"])
def test_a_picture_smaller_than_the_largest_stride_gets_the_logits_that_it_has_among_others(kind):
    model = lf.tasks.segmenter(kind, lf.create("metaformer", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)), 3, channels=64)
    images = torch.randn(2, 3, 20, 9, dtype=torch.float64)  # norms of equal numbers enlarge what is rounded off
    one, both = model.double().eval()(images[:1]), model(images)
    assert one.shape == (1, 3, 20, 9)
    assert torch.allclose(one, both[:1], atol=1e-5)


def test_unknown_decoders_and_widths_that_no_norm_divides_are_refused():
    with pytest.raises(ValueError, match="unknown segmenter 'unet'; known: fpn, upernet"):
        lf.tasks.segmenter("unet", small("vit"), 3)
    with pytest.raises(ValueError, match="channels of fpn are a multiple of 64"):
        lf.tasks.segmenter("fpn", small("vit"), 3, channels=48)
    with pytest.raises(ValueError, match="takes four maps"):
        lf.tasks.segmenter("fpn", lf.create("metaformer", depths=(1, 1), dims=(8, 16)), 3)
    with pytest.raises(ValueError, match="classes is how many there are"):
        lf.tasks.segmenter("fpn", small("vit"), 0)


@pytest.mark.exhaustive
def test_upernet_with_swin_counts_as_papers_print_it():
    """60 M and 945 G at 512 x 2048 for 150 classes; 0.9 M of them are an auxiliary head of training alone."""
    with torch.device("meta"):
        found = count(lf.tasks.segmenter("upernet", "swin_tiny_patch4_window7_224", 150), (3, 512, 2048))
    assert found.macs / 1e9 == pytest.approx(945, rel=0.01)
    assert found.parameters / 1e6 == pytest.approx(59.0, abs=0.1)
