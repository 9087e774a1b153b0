"""Detectors around lean backbones: torchvision's convention, cards, fusing proven on boxes, published counts."""

import copy
from typing import Any

import pytest
import torch

import leanformer as lf
from leanformer.core.plan import _prove
from leanformer.measure import compare, count
from leanformer.methods.repa.idle_ffn import IdleFFN
from leanformer.tasks.pyramid import Features

KINDS = ("retinanet", "faster_rcnn", "mask_rcnn")
SMALL = {"channels": 16, "min_size": 64, "max_size": 96, "detections": 10}


def backbone() -> torch.nn.Module:
    torch.manual_seed(0)
    return lf.create("metaformer", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=5)


def pictures() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(3, *size, generator=generator) for size in ((50, 70), (61, 33))]


def targets() -> list[dict[str, torch.Tensor]]:
    boxes = torch.tensor([[4.0, 5.0, 30.0, 28.0]])
    some = {"boxes": boxes, "labels": torch.tensor([2]), "masks": torch.ones(1, 50, 70, dtype=torch.uint8)}
    none = {"boxes": boxes[:0], "labels": torch.zeros(0, dtype=torch.long), "masks": torch.zeros(0, 61, 33).byte()}
    return [some, none]


@pytest.fixture(scope="module")
def lean() -> dict[str, torch.nn.Module]:
    body = lf.apply(backbone(), lf.RePa(idle_ratio=0.5))
    torch.manual_seed(2)
    return {kind: lf.tasks.detector(kind, body, ["cat", "dog"], **SMALL) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_detector_gives_losses_in_training_and_boxes_with_labels_from_1_in_evaluation(lean, kind):
    losses = lean[kind].train()(pictures(), targets())
    assert all(loss.isfinite() for loss in losses.values())
    idle = [name for name, p in lean[kind].named_parameters() if p.requires_grad and p.grad is None]
    sum(losses.values()).backward()
    idle = [name for name in idle if lean[kind].get_parameter(name).grad is None]
    assert not idle
    lean[kind].zero_grad()
    detector = lean[kind].eval()
    with torch.no_grad():
        answers = detector.lenient((64, 96))(pictures())
    for picture, answer in zip(pictures(), answers, strict=True):
        assert 0 < len(answer["boxes"]) <= SMALL["detections"]
        assert set(answer["labels"].tolist()) <= {1, 2}
        assert (answer["boxes"] <= torch.tensor([picture.shape[2], picture.shape[1]] * 2) + 1e-3).all()
        assert ("masks" in answer) == (kind == "mask_rcnn")


@torch.no_grad()
@pytest.mark.parametrize("branch", ["classification_head", "regression_head"])
def test_a_narrow_head_of_retinanet_starts_with_answers_that_vary_as_those_of_the_published_width(branch):
    spread = {}
    for channels in (16, 64, 256):
        torch.manual_seed(3)
        head = lf.tasks.detector("retinanet", backbone(), 20, channels=channels).head
        maps = [torch.randn(1, channels, 24, 24).relu()]
        answers = getattr(head, branch)(maps)
        spread[channels] = (answers - answers.mean((0, 1))).std().item()
        if channels == 256:
            first = head.classification_head.conv[0][0].weight
            assert first.std().item() == pytest.approx(0.01, rel=0.02)  # as published
    assert spread[16] == pytest.approx(spread[256], rel=0.6)
    assert spread[64] == pytest.approx(spread[256], rel=0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_detector_is_smaller_gives_the_same_boxes_and_loads_from_its_file_alone(lean, kind, tmp_path):
    detector = lf.recalibrate(lean[kind].eval(), [pictures()])
    fused = lf.fuse(detector)  # proven in float64, or it raises
    shown = fused.double().evidence()
    named = {name.split()[0] for name in shown}
    assert {"boxes", "labels", "scores"} <= named
    assert all(len(x) for name, x in shown.items() if name.split()[0] in ("boxes", "scores", "masks"))
    assert count(fused).parameters < count(detector).parameters
    again = lf.load(lf.save(fused.float(), tmp_path / "fused.safetensors"))
    assert lf.card_of(again).classes == ("cat", "dog")
    for one, other in zip(fused.lenient((64, 96))(pictures()), again.lenient((64, 96))(pictures()), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_fusing_that_moves_a_box_is_found_out(lean):
    exact = lf.recalibrate(lean["faster_rcnn"].eval(), [pictures()]).double()
    folded = lf.core.fold(exact)
    _prove(exact, folded)
    folded.roi_heads.box_predictor.bbox_pred.bias.data += 1e-6
    with pytest.raises(RuntimeError, match="fusing changed the outputs"):
        _prove(exact, folded)


def test_repa_adopts_the_backbone_inside_a_trained_detector_and_is_calibrated_on_pictures():
    vit = lf.create("vit", img_size=64, patch_size=16, embed_dim=16, depth=2, num_heads=2)
    for block in lf.blocks_of(vit).values():
        block.ffn.fn.fc1.weight.data *= 10  # so that what the MLPs compute matters
        block.ffn.fn.fc2.weight.data *= 10
    detector = lf.tasks.detector("retinanet", vit, 2, **SMALL).eval()
    changed = lf.apply(detector, lf.RePa(idle_ratio=0.5))
    images = torch.stack([torch.rand(3, 64, 96, generator=torch.Generator().manual_seed(i)) for i in range(8)])
    fitted = lf.calibrate(changed, detector, images)
    with torch.no_grad():
        seen = detector.transform(images)[0].tensors
        wanted = detector.backbone(seen)["0"]
        before, after = ((model.backbone(seen)["0"] - wanted).square().mean() for model in (changed.eval(), fitted))
    assert after < 0.2 * before
    assert any(isinstance(module, IdleFFN) for module in fitted.backbone.features.body.modules())


def optimized(joined: torch.nn.Module, **how) -> torch.nn.Module:
    """Stands for `lf.optimize`, which would compile."""
    joined.choice = how["size"]
    return joined


def test_a_fast_detector_finds_the_same_boxes_and_its_file_holds_the_plain_one(lean, tmp_path):
    plain = lf.recalibrate(lean["mask_rcnn"].eval(), [pictures()])
    fast = plain.optimised_inside(optimized, device="cpu", size=None)
    assert fast.choice == (3, 64, 96)
    again = lf.load(lf.save(fast, tmp_path / "fast.safetensors"))
    for one, two, three in zip(plain(pictures()), fast(pictures()), again(pictures()), strict=True):
        assert all(torch.equal(one[name], two[name]) and torch.equal(one[name], three[name]) for name in one)
    assert all(p.requires_grad for p in plain.parameters())


def test_a_detector_is_optimised_for_pictures_as_they_are_padded():
    plain = lf.tasks.detector("retinanet", lf.create("metaformer", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)), 2,
                              channels=16, min_size=50, max_size=90).eval()  # fmt: skip
    fast: Any = plain.optimised_inside(optimized, device="cpu", size=None)
    picture = torch.rand(plain.pretrained_cfg["input_size"])
    assert fast.choice == (3, *plain.transform([picture])[0].tensors.shape[2:])


@pytest.mark.parametrize("mode", ["eager", "compiled", "optimised"])
def test_a_detector_is_timed_whole_with_its_backbone_made_fast(mode, monkeypatch):
    asked: list[torch.nn.Module] = []
    monkeypatch.setattr(torch, "compile", lambda module, **how: asked.append(module) or module)
    plain = lf.tasks.detector("faster_rcnn", lf.create("metaformer", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)), 2,
                              channels=16, min_size=64, max_size=96).eval()  # fmt: skip
    found = compare([plain], device="cpu", batches=[1], dtypes=["bfloat16"], modes=[mode], repeats=1,
                    optimize=lambda model, **how: model.optimised_inside(optimized, **how))  # fmt: skip
    assert [row.mode for row in found.rows] == [mode]
    assert [isinstance(module, Features) for module in asked] == [True] * (mode == "compiled")


def test_what_a_detector_finds_fits_no_cuda_graph(lean):
    with pytest.raises(ValueError, match="has no mode 'graph', since what it computes depends on what it sees"):
        compare([lean["retinanet"]], device="cpu", batches=[1], dtypes=["float32"], modes=["graph"], repeats=1)


@pytest.mark.exhaustive
def test_optimize_compiles_the_backbone_of_a_detector(lean):
    plain = lf.fuse(lf.recalibrate(lean["faster_rcnn"].eval(), [pictures()]))
    fast = lf.optimize(plain, device="cpu", batch=1, search=False)
    for one, two in zip(plain.lenient((64, 96))(pictures()), fast(pictures()), strict=True):
        torch.testing.assert_close(one["boxes"][:3], two["boxes"][:3], rtol=1e-3, atol=1e-2)


def test_the_normalisation_is_the_backbones_and_unknown_options_are_refused():
    body = lf.core.set_input(backbone(), {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)})
    assert lf.tasks.detector("retinanet", body, 2, **SMALL).transform.image_mean == [0.5, 0.4, 0.3]
    for wrong, words in (
        ({"colour": 1}, "a detector has no option 'colour'; its options: levels"),
        ({"channels": 0}, "channels must be a whole number from 1"),
        ({"min_size": 900, "max_size": 800}, "max_size 800 is below min_size 900"),
        ({"levels": (7,)}, "levels are from 0 to 3"),
        ({"levels": 2}, "levels are from 0 to 3 here, finest first, each once; not 2"),
    ):
        with pytest.raises(ValueError, match=words):
            lf.tasks.detector("retinanet", body, 2, **wrong)
    with pytest.raises(ValueError, match="unknown detector 'yolo'; known: retinanet, faster_rcnn, mask_rcnn"):
        lf.tasks.detector("yolo", body, 2)
    vit = lf.create("vit", img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2)
    with pytest.raises(ValueError, match="drops, merges or mixes tokens"):
        lf.tasks.detector("retinanet", lf.apply(vit, lf.EViT()), 2)


def test_a_card_that_asks_for_weights_from_elsewhere_is_refused():
    with pytest.raises(ValueError, match="asks for weights from elsewhere"):
        lf.create("retinanet", backbone="vit", num_classes=2, backbone_arguments={"checkpoint_path": "x.pth"})


PUBLISHED = [
    ("retinanet", "swin_tiny_patch4_window7_224", 38.5, 247.8),
    ("mask_rcnn", "swin_tiny_patch4_window7_224", 47.8, 267.0),
    ("retinanet", "poolformer_s12", 21.7, None),
    ("mask_rcnn", "poolformer_s12", 31.6, None),
]
"""Parameters in M, and MACs in G at 800 x 1280, as papers on these backbones print them for 80 classes."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "name", "params", "macs"), PUBLISHED)
def test_parameters_and_macs_are_those_that_papers_print_for_coco(kind, name, params, macs):
    with torch.device("meta"):
        found = count(lf.tasks.detector(kind, lf.create(name), 80), (3, 800, 1280))
    assert found.parameters / 1e6 == pytest.approx(params, abs=0.06)
    if macs is not None:
        assert found.macs / 1e9 == pytest.approx(macs, rel=0.01)


@torch.no_grad()
def test_regions_are_pooled_from_where_they_lie_whatever_pictures_came_before():
    torch.manual_seed(4)
    detector = lf.tasks.detector("faster_rcnn", backbone(), 2, **{**SMALL, "max_size": 512, "score_threshold": 0.0})
    for parameter in detector.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    detector, picture, panorama = detector.eval(), torch.rand(3, 64, 80), torch.rand(3, 40, 512)
    alone = copy.deepcopy(detector)([picture])[0]
    detector([panorama])  # 40 pixels high, and 24 of padding below
    after = detector([picture])[0]
    assert len(after["scores"])
    for name, wanted in alone.items():
        assert torch.equal(after[name], wanted), name


@pytest.mark.parametrize(("patch", "levels"), [(12, None), (20, (0, 1, 2))])
def test_places_are_right_where_strides_are_no_powers_of_two(patch, levels):
    vit = lf.create("vit", img_size=4 * patch, patch_size=patch, embed_dim=16, depth=1, num_heads=2, num_classes=2)
    detector: Any = lf.tasks.detector("faster_rcnn", vit, 2, **SMALL, levels=levels).eval()
    images = detector.transform([torch.rand(3, 64, 96)])[0].tensors
    maps = detector.backbone(images).values()
    for stride, x in zip(detector.backbone.features.strides, maps):
        assert (x.shape[2] * stride, x.shape[3] * stride) == images.shape[2:]
    detector(pictures())
    assert detector.roi_heads.box_roi_pool.scales == [1 / stride for stride in detector.backbone.features.strides]


def test_a_detector_learns_from_large_regions_of_maps_between_which_one_is_left_out():
    torch.manual_seed(5)
    detector: Any = lf.tasks.detector("faster_rcnn", backbone(), 2, channels=16, min_size=320, max_size=320,
                                      levels=(0, 2))  # fmt: skip
    boxes = torch.tensor([[10.0, 10.0, 300.0, 300.0], [10.0, 10.0, 40.0, 40.0], [10.0, 10.0, 170.0, 170.0]])
    which = detector.roi_heads.box_roi_pool.map_levels([boxes])
    assert which.tolist() == [1, 0, 0]
    losses = detector.train()([torch.rand(3, 320, 320)], [{"boxes": boxes, "labels": torch.tensor([1, 1, 2])}])
    assert all(loss.isfinite() for loss in losses.values())
